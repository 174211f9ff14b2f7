/**
 * A shop, for tests of the ingress: values of every kind, and effects that must not happen twice.
 */
namespace go shop

enum Size { SMALL = 1, LARGE = 3 }

struct Point { 1: i32 x, 2: i32 y }

union Payment {
  1: string card
  2: i64 cents
}

struct Item {
  1: required string name
  2: i32 number = 1
  3: optional double price
  4: optional binary photo
}

/** All that somebody orders. */
struct Order {
  1: i64 number
  2: list<Item> items
  3: map<string, i64> notes
  4: set<Size> sizes
  5: Payment payment
  6: map<Point, list<i16>> grid
  7: bool gift
  8: i8 priority
  9: map<Size, double> prices
  10: optional Order parent
}

exception SoldOut {
  1: string item
  2: i32 left
}

service Shop {
  /** Returns what it gets. */
  Order echo(1: Order order)

  /** Adds to an account, and returns what it has then. */
  i64 buy(1: string account, 2: i64 cents) throws (1: SoldOut soldOut)

  /** Returns what an account has. */
  i64 total(1: string account) (bifrost.policy = "none")

  /** Fails in the way that its argument asks for. */
  void fail(1: string how) throws (1: SoldOut soldOut)

  /** Adds, and returns nothing. */
  oneway void note(1: string account, 2: i64 cents)

  /** Returns how many bytes it gets. */
  i64 measure(1: binary body (bifrost.ref))

  /** Adds a byte's worth to an account for each byte, and returns its digest behind the account's name. */
  string deposit(1: string account, 2: binary body (bifrost.ref)) throws (1: SoldOut soldOut)

  /** Returns what it gets, as often as it is asked to. */
  binary repeat(1: binary body (bifrost.ref), 2: i32 times = 1) (bifrost.ref)

  /** Returns so many bytes. */
  binary make(1: i64 size) (bifrost.ref)

  /** Takes two. */
  i64 both(1: binary a (bifrost.ref), 2: binary b (bifrost.ref))
}
