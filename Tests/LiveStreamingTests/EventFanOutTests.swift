// Random observers against a list of all events.

import PropertyTesting
import Testing

@testable import LiveStreaming

@Suite("Events for several observers")
struct EventFanOutTests {
  private enum Item: Equatable {
    case event(Int)
    case missed(Int)
  }

  /// What the model knows of one observer.
  private struct Expected {
    var id: UInt64
    /// The number of the first event intended for it.
    var start: Int
    /// The number of the next event that it can receive.
    var position: Int
    var isWaiting = false
  }

  @Test(
    "each observer receives each event once and in order, or the number of missed events, and always the last one",
    arguments: Seed.several(5))
  func everyEvent(seed: Seed) {
    var random = seed.generator
    for _ in 0..<300 {
      let limit = Int.random(in: 1...5, using: &random)
      var fanOut = EventFanOut<Item, UInt64>(.all(limit: limit, missed: { .missed($0) }))
      var observers: [Expected] = []
      var (published, hasEnded, hasHadObserver) = (0, false, false)

      /// Compares the received events of an observer with the expected ones.
      func check(_ item: Item, _ observer: inout Expected) {
        switch item {
        case .missed(let count):
          // The oldest were discarded, and no more than necessary.
          #expect(count > 0 && published - (observer.position + count) == min(limit, published - observer.start))
          observer.position += count
        case .event(let number):
          #expect(number == observer.position && published - number <= limit)
          observer.position += 1
        }
      }

      for _ in 0..<60 {
        switch Int.random(in: 0..<10, using: &random) {
        case 0:
          let start = hasHadObserver ? (hasEnded ? published - 1 : published) : 0
          observers.append(Expected(id: fanOut.subscribe(), start: start, position: start))
          hasHadObserver = true
        case 1 where !observers.isEmpty:
          let gone = observers.remove(at: Int.random(in: observers.indices, using: &random))
          #expect((fanOut.unsubscribe(gone.id) == gone.id) == gone.isWaiting)
        case 2...5:
          let isLast = random.chance(3)
          let waiters = fanOut.publish(.event(published), isLast: isLast)
          #expect(Set(waiters) == (hasEnded ? [] : Set(observers.filter(\.isWaiting).map(\.id))))
          if hasEnded { break }
          published += 1
          hasEnded = isLast
          for index in observers.indices where observers[index].isWaiting {
            observers[index].isWaiting = false
            check(.event(published - 1), &observers[index])
          }
        default:
          guard let index = observers.indices.filter({ !observers[$0].isWaiting }).randomElement(using: &random) else {
            break
          }
          switch fanOut.next(observers[index].id, observers[index].id) {
          case .event(let item): check(item, &observers[index])
          case .end: #expect(hasEnded && observers[index].position == published)
          case .wait:
            #expect(!hasEnded && observers[index].position == published)
            observers[index].isWaiting = true
          }
        }
        #expect(fanOut.isObserved == !observers.isEmpty)
      }
    }
  }

  @Test(
    "an observer of the newest event receives it, even if it came first, and always the last one",
    arguments: Seed.several(5))
  func newest(seed: Seed) {
    var random = seed.generator
    for _ in 0..<300 {
      var fanOut = EventFanOut<Int, Int>(.newest)
      var (published, observer) = (0, UInt64?.none)
      for _ in 0..<Int.random(in: 0..<10, using: &random) {
        if random.chance(30), observer == nil { observer = fanOut.subscribe() }
        _ = fanOut.publish(published)
        published += 1
        if let observer, random.chance(50), case .event(let number) = fanOut.next(observer, 0) {
          #expect(number == published - 1)
        }
      }
      let late = fanOut.subscribe()
      _ = fanOut.publish(published, isLast: true)
      for id in [late, fanOut.subscribe()] + (observer.map { [$0] } ?? []) {
        var last = -1
        while case .event(let number) = fanOut.next(id, 0) { last = number }
        #expect(last == published)
        if case .end = fanOut.next(id, 0) {} else { Issue.record("an observation without an end") }
      }
    }
  }
}

@Suite("Turns of writers")
struct WriteQueueTests {
  @Test(
    "only one writer at a time has the turn, in the order of the calls, and each receives it, even after the end",
    arguments: Seed.several(5))
  func turns(seed: Seed) {
    var random = seed.generator
    for _ in 0..<300 {
      var queue = WriteQueue<Int>()
      var (waiting, holder, isBlocked, next) = ([Int](), Int?.none, false, 0)
      for _ in 0..<60 {
        switch Int.random(in: 0..<6, using: &random) {
        case 0, 1:
          let waits = queue.wait(next)
          #expect(waits == (holder != nil))
          if waits { waiting.append(next) } else { holder = next }
          next += 1
        case 2 where holder != nil && !isBlocked:
          let isNext = queue.end()
          #expect(isNext == waiting.first)
          holder = waiting.isEmpty ? nil : waiting.removeFirst()
        case 3 where !isBlocked:
          guard let holder else { break }
          isBlocked = queue.block(holder)
          #expect(isBlocked != queue.hasEnded)
        case 4:
          #expect(queue.unblock() == (isBlocked ? holder : nil))
          isBlocked = false
        case 5 where random.chance(10):
          #expect(queue.close() == (isBlocked ? holder : nil))
          isBlocked = false
        default: break
        }
        #expect(queue.isBusy == (holder != nil))
      }
    }
  }
}
