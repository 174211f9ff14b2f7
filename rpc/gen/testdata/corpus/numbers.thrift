// Fields without a number, or none that Thrift takes, have negative ones.
namespace go corpus.numbers
exception Odd { string why }
struct Few { string one, 5: i32 five; binary two }
service Numbers {
  binary mixed(binary a (bifrost.ref), -3: i32 b, 0: Few c (bifrost.ref), 5: list<i32> d (bifrost.ref)) throws (Odd o) (bifrost.ref)
  i32 first(01: binary a (bifrost.ref), 0x2: optional i32 b = 098, 010: required string c)
}
