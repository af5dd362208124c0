// Lists the places in Swift files where a small change makes a mutant, as JSON Lines. It is the first half of `make
// mutation`.
//
// `mutation.py` compiles it with the toolchain's own parser (SwiftParser), so that no package is needed.

import Foundation
import SwiftOperators
import SwiftParser
import SwiftSyntax

/// One possible change of a file. Offsets are in bytes. `mutated` has no line breaks, so that line numbers do not
/// change.
struct Mutant: Encodable {
  enum Form: String, Encodable {
    /// An expression: `(switch ? mutated : original)`.
    case expression
    /// A condition: `(switch != (original))`.
    case condition
    /// A statement that is removed: `if !switch { original }`.
    case removal
    /// A statement that is replaced: `if switch { mutated } else { original }`.
    case statement
  }

  let file: String
  let line: Int
  let start: Int
  let end: Int
  let kind: String
  let form: Form
  let declaration: String
  let original: String
  let mutated: String
}

/// Finds the mutants of one file.
final class MutantFinder: SyntaxVisitor {
  private static let operators: [String: (kind: String, replacement: String)] = [
    "<": ("comparison", "<="), "<=": ("comparison", "<"), ">": ("comparison", ">="), ">=": ("comparison", ">"),
    "==": ("equality", "!="), "!=": ("equality", "=="), "===": ("equality", "!=="), "!==": ("equality", "==="),
    "&&": ("logic", "||"), "||": ("logic", "&&"),
    "+": ("arithmetic", "-"), "-": ("arithmetic", "+"), "*": ("arithmetic", "/"), "/": ("arithmetic", "*"),
    "&+": ("arithmetic", "&-"), "&-": ("arithmetic", "&+"), "<<": ("arithmetic", ">>"), ">>": ("arithmetic", "<<"),
  ]
  private static let assignments = ["+=": "-=", "-=": "+=", "&+=": "&-=", "&-=": "&+="]
  /// Calls whose absence these tests could not detect: it leaks memory, which `make test-address` finds, or costs time.
  private static let unobservable: Set<String> = [
    "precondition", "assert", "assertionFailure", "print", "free", "deallocate", "deinitialize", "reserveCapacity",
    "posix_fadvise", "curl_free", "curl_url_cleanup", "curl_slist_free_all", "curl_easy_cleanup",
    "freelocale", "snd_pcm_status_free", "snd_pcm_hw_params_free", "snd_pcm_sw_params_free", "snd_ctl_card_info_free",
    "snd_pcm_info_free", "snd_device_name_free_hint",
  ]

  private let file: String
  private let converter: SourceLocationConverter
  private(set) var mutants: [Mutant] = []

  init(file: String, tree: SourceFileSyntax) {
    self.file = file
    converter = SourceLocationConverter(fileName: file, tree: tree)
    super.init(viewMode: .sourceAccurate)
  }

  // MARK: Code without mutants

  override func visit(_ node: AttributeSyntax) -> SyntaxVisitorContinueKind { .skipChildren }
  override func visit(_ node: IfConfigClauseListSyntax) -> SyntaxVisitorContinueKind { .skipChildren }
  override func visit(_ node: EnumCaseDeclSyntax) -> SyntaxVisitorContinueKind { .skipChildren }
  override func visit(_ node: StringLiteralExprSyntax) -> SyntaxVisitorContinueKind { .skipChildren }
  override func visit(_ node: MacroExpansionExprSyntax) -> SyntaxVisitorContinueKind { .skipChildren }

  override func visit(_ node: FunctionCallExprSyntax) -> SyntaxVisitorContinueKind {
    isUnobservable(node) ? .skipChildren : .visitChildren
  }

  private func isUnobservable(_ call: FunctionCallExprSyntax) -> Bool {
    let called = call.calledExpression
    let name = called.as(MemberAccessExprSyntax.self)?.declName.baseName.text ?? called.trimmedDescription
    return Self.unobservable.contains(name)
  }

  // MARK: Expressions

  override func visit(_ node: InfixOperatorExprSyntax) -> SyntaxVisitorContinueKind {
    guard let name = node.operator.as(BinaryOperatorExprSyntax.self)?.operator.text,
      let (kind, replacement) = Self.operators[name]
    else { return .visitChildren }
    // Strings and arrays have a `+` but no `-`.
    let operands = [node.leftOperand, node.rightOperand]
    if name == "+", operands.contains(where: { $0.is(StringLiteralExprSyntax.self) || $0.is(ArrayExprSyntax.self) }) {
      return .visitChildren
    }
    add(node, kind, .expression, "\(text(node.leftOperand)) \(replacement) \(text(node.rightOperand))")
    return .visitChildren
  }

  override func visit(_ node: PrefixOperatorExprSyntax) -> SyntaxVisitorContinueKind {
    if node.operator.text == "!" { add(node, "negation", .expression, text(node.expression)) }
    return .visitChildren
  }

  override func visit(_ node: BooleanLiteralExprSyntax) -> SyntaxVisitorContinueKind {
    add(node, "literal", .expression, node.literal.text == "true" ? "false" : "true")
    return .skipChildren
  }

  override func visit(_ node: IntegerLiteralExprSyntax) -> SyntaxVisitorContinueKind {
    add(node, "literal", .expression, node.literal.text == "0" ? "1" : "\(node.literal.text) + 1")
    return .skipChildren
  }

  override func visit(_ node: ConditionElementSyntax) -> SyntaxVisitorContinueKind {
    if case .expression(let expression) = node.condition, !expression.is(InfixOperatorExprSyntax.self),
      !expression.is(PrefixOperatorExprSyntax.self), !expression.is(BooleanLiteralExprSyntax.self)
    {
      add(expression, "condition", .condition, "!(\(text(expression)))")
    }
    return .visitChildren
  }

  // MARK: Statements

  override func visit(_ node: CodeBlockItemSyntax) -> SyntaxVisitorContinueKind {
    guard case .expr(var expression) = node.item, !isImplicitReturn(node) else { return .visitChildren }
    if let marked = expression.as(TryExprSyntax.self) { expression = marked.expression }
    if let call = expression.as(FunctionCallExprSyntax.self) {
      if !isUnobservable(call), call.trailingClosure == nil {
        add(node, "statement", .removal, "")
      }
    } else if let infix = expression.as(InfixOperatorExprSyntax.self) {
      let name = infix.operator.trimmedDescription
      if name == "=" {
        // Without a statement of its initializer, a type may not compile.
        if !isInInitializer(Syntax(node)) { add(node, "statement", .removal, "") }
      } else if let replacement = Self.assignments[name] {
        add(
          node, "arithmetic", .statement,
          "\(text(infix.leftOperand)) \(replacement) \(text(infix.rightOperand))")
      }
    }
    return .visitChildren
  }

  /// Whether a statement may be the value of the enclosing block.
  private func isImplicitReturn(_ node: CodeBlockItemSyntax) -> Bool {
    guard let list = node.parent?.as(CodeBlockItemListSyntax.self), list.count == 1, let owner = list.parent else {
      return false
    }
    if owner.is(ClosureExprSyntax.self) || owner.is(AccessorBlockSyntax.self) { return true }
    guard let declaration = owner.parent else { return false }
    if let function = declaration.as(FunctionDeclSyntax.self) { return function.signature.returnClause != nil }
    return declaration.is(AccessorDeclSyntax.self) || declaration.is(SubscriptDeclSyntax.self)
      || owner.is(SwitchCaseSyntax.self)
  }

  private func isInInitializer(_ node: Syntax) -> Bool {
    var place = node.parent
    while let current = place {
      if current.is(InitializerDeclSyntax.self) { return true }
      if current.is(FunctionDeclSyntax.self) || current.is(ClosureExprSyntax.self) { return false }
      place = current.parent
    }
    return false
  }

  // MARK: Mutants

  private func text(_ node: some SyntaxProtocol) -> String {
    node.trimmedDescription.split(whereSeparator: \.isNewline)
      .map { $0.trimmingCharacters(in: .whitespaces) }.joined(separator: " ")
  }

  private func add(_ node: some SyntaxProtocol, _ kind: String, _ form: Mutant.Form, _ mutated: String) {
    let original = node.trimmedDescription
    // `try` and `await` must not be on the right of an operator, and a comment would swallow the rest of the line.
    if form != .removal {
      let marks = ["try ", "try?", "await ", "//", "#"]
      if marks.contains(where: { original.contains($0) }) { return }
    }
    guard isInBody(Syntax(node)) else { return }
    mutants.append(
      Mutant(
        file: file, line: converter.location(for: node.positionAfterSkippingLeadingTrivia).line,
        start: node.positionAfterSkippingLeadingTrivia.utf8Offset, end: node.endPositionBeforeTrailingTrivia.utf8Offset,
        kind: kind, form: form, declaration: declaration(Syntax(node)), original: text(node), mutated: mutated))
  }

  /// Whether the code at this place runs, and is not a default of a parameter or a property.
  private func isInBody(_ node: Syntax) -> Bool {
    var place = node.parent
    while let current = place {
      if current.is(CodeBlockItemListSyntax.self), current.parent?.is(SourceFileSyntax.self) == false { return true }
      if current.is(FunctionParameterSyntax.self) || current.is(MemberBlockItemSyntax.self) { return false }
      place = current.parent
    }
    return false
  }

  /// The names of the enclosing declarations, such as `CircularStorage.release`.
  private func declaration(_ node: Syntax) -> String {
    var names: [String] = []
    var place = node.parent
    while let current = place {
      if let function = current.as(FunctionDeclSyntax.self) { names.insert(function.name.text, at: 0) }
      if current.is(InitializerDeclSyntax.self) { names.insert("init", at: 0) }
      if let variable = current.as(VariableDeclSyntax.self), current.parent?.is(MemberBlockItemSyntax.self) == true {
        names.insert(variable.bindings.first?.pattern.trimmedDescription ?? "", at: 0)
      }
      if let type = current.asProtocol((any NamedDeclSyntax).self), !current.is(FunctionDeclSyntax.self) {
        names.insert(type.name.text, at: 0)
      }
      if let type = current.as(ExtensionDeclSyntax.self) { names.insert(type.extendedType.trimmedDescription, at: 0) }
      place = current.parent
    }
    return names.joined(separator: ".")
  }
}

let encoder = JSONEncoder()
encoder.outputFormatting = [.sortedKeys, .withoutEscapingSlashes]
for path in CommandLine.arguments.dropFirst() {
  let source = try String(contentsOfFile: path, encoding: .utf8)
  // Folded, because the parser alone treats a chain of operators as a flat list.
  let folded = OperatorTable.standardOperators.foldAll(Parser.parse(source: source)) { _ in }
  guard let tree = folded.as(SourceFileSyntax.self) else { continue }
  let finder = MutantFinder(file: path, tree: tree)
  finder.walk(tree)
  for mutant in finder.mutants { print(String(decoding: try encoder.encode(mutant), as: UTF8.self)) }
}
