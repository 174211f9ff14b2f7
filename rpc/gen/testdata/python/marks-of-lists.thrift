/** Lists whose numbers have a name, and lists whose numbers have none. */
include "parent.thrift"

namespace py labtest.marks

enum Colour { RED = 1, GREEN = 2 }
typedef Colour Shade
typedef list<Colour> Palette
typedef list<i32> Numbers
typedef binary Film

service Lists extends parent.Parent {
  list<Colour> colours(1: list<Shade> shades (bifrost.ref), 2: Palette palette (bifrost.ref = "region")) (bifrost.ref)
  Numbers numbers(1: list<i32> bare (bifrost.ref = "value"), 2: Numbers named (bifrost.ref), 3: list<parent.Account> accounts (bifrost.ref)) (bifrost.ref)
  set<Colour> others(1: list<bool> flags (bifrost.ref), 2: list<list<Colour>> nested (bifrost.ref), 3: Film film (bifrost.ref), 4: i32 plain) (bifrost.ref)
  void unmarked(1: list<Colour> colours)
}

service Untouched { void nothing() (bifrost.policy = "none") }
