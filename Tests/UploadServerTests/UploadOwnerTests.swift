// Tests which clients without a token count as one.

import Testing

@testable import StreamServing

@Suite("The owner of an upload")
struct UploadOwnerTests {
  @Test(
    "without a token, clients count by their IPv4 address, or by the first 64 bits of their IPv6 address",
    arguments: [
      ("192.0.2.7:49152", "192.0.2.7"),
      ("192.0.2.7:0", "192.0.2.7"),
      ("192.0.2.7", "192.0.2.7"),
      ("[::ffff:192.0.2.7]:49152", "192.0.2.7"),
      ("[::FFFF:c000:207]:49152", "192.0.2.7"),
      ("[0:0:0:0:0:ffff:192.0.2.7]", "192.0.2.7"),
      ("[::fffe:192.0.2.7]:1", "[::fffe:c000:207]"),
      ("[::ff:192.0.2.7]:1", "[::ff:c000:207]"),
      ("[2001:db8:1:2:3:4:5:6]:49152", "[2001:db8:1:2::]/64"),
      ("[2001:db8:1:2::]:49152", "[2001:db8:1:2::]/64"),
      ("[2001:DB8:1:2::ffff:ffff]", "[2001:db8:1:2::]/64"),
      ("[2001:0db8:0001:0002:0000:0000:0000:0001]:1", "[2001:db8:1:2::]/64"),
      ("[2001:db8:1:2:ffff::1]:1", "[2001:db8:1:2::]/64"), ("[0:0:0:0:ff00::1]:1", "[::ff00:0:0:1]"),
      ("[2001:db8:1:3::1]:1", "[2001:db8:1:3::]/64"),
      ("[2001:db8::7]", "[2001:db8::]/64"),
      ("[64:ff9b::192.0.2.7]:1", "[64:ff9b::]/64"),
      ("[0:0:0:1::1]:1", "[0:0:0:1::]/64"),
      ("[::1]:49152", "[::1]"),
      ("[0:0:0:0:0:0:0:1]:49152", "[::1]"),
      ("[::]:1", "[::]"),
      ("[fe80::1%eth0]:49152", "[fe80::1%eth0]"),
      ("[fe80::1]:49152", "[fe80::]/64"),
      ("[2001:db8:1:2::]/64", "[2001:db8:1:2::]/64"),
      ("[2001:db8:1:2::]/64:49152", "[2001:db8:1:2::]/64"),
      ("[no address]:1", "[no address]"), ("[]:1", "[]"), ("[", "["), ("[:1", "["), ("]", "]"), (":1", ""), ("", ""),
      ("unix", "unix"), ("jetstream", "jetstream"),
    ])
  func addresses(_ peer: String, _ address: String) {
    let owner = UploadOwner(address: peer)
    #expect(owner.address == address)
    // A record has this form.
    #expect(UploadOwner(address: owner.address) == owner)
  }

  @Test("addresses of the same network are one owner, and tokens are distinguished wherever they are used")
  func equality() {
    func owner(_ address: String, _ credential: [UInt8]? = nil) -> UploadOwner {
      UploadOwner(credential: credential, address: address)
    }
    #expect(owner("[2001:db8:1:2::1]:1") == owner("[2001:db8:1:2:ffff::2]:2"))
    #expect(owner("[2001:db8:1:2::1]:1") != owner("[2001:db8:1:3::1]:1"))
    #expect(owner("[::ffff:192.0.2.7]:1") == owner("192.0.2.7:2"))
    #expect(owner("192.0.2.7:1") != owner("192.0.2.8:1"))
    #expect(owner("[2001:db8:1:2::1]:1", [1]) != owner("[2001:db8:1:2::1]:1", [2]))
    #expect(owner("[2001:db8:1:2::1]:1", [1]) == owner("192.0.2.7:1", [1]))
    #expect(Set([owner("[2001:db8::1]:1"), owner("[2001:db8::2]:1"), owner("[2001:db8::]/64")]).count == 1)
  }
}
