namespace go corpus.types

typedef i32 A;
typedef binary (kind = "raw") B (more, and = "more"),
typedef map cpp_type "std::map" <string, list<set<i64>>> Nested
typedef list<i32> cpp_type "std::list" Old
typedef set cpp_type "std::set" <binary> Blobs (x)
typedef i32 optional_t
typedef string requiredly
typedef Later Alias
typedef Alias Twice

enum Colour { RED = 01, GREEN (note = "x"), BLUE = 0xFF; DARK } (closed)
enum Empty {}

const A NUMBER = 098;
const i64 NEGATIVE = -0x1F,
const i32 POSITIVE = +7
const double TINY = -.5e-3
const double WHOLE = 1e05
const double POINT = +0.25
const bool YES = true
const bool NO = 0
const string QUOTED = "a 'b' \"c\" \\"
const string OTHER = '"\'\t'
const string EMPTY = ""
const list<i32> RUN = [1 2, 3; 4-5]
const map<string, list<i32>> TREE = {"a": [1], 'b': [] "c": [0x10;]}
const Colour FIRST = Colour.RED
const list<list<i32>> NONE = []

struct Later xsd_all {
  1: Later & following
  2: optional Later& other
  required i32 implicit,
  03: A a = 010 xsd_optional
  4: string text = "t" xsd_nillable xsd_attrs { 1: string lang } (big);
  5: optional_t optional_t
  6: required requiredly requiredly
  7: list<map<Colour, Later>> deep
} (persisted)

struct Nothing {}
union Either { 1: Later left; 2: i64 right }
exception Failed { 1: string message } (fault)
typedef Failed Broken

service Types {
  map<string, list<Later>> posts(1: list<Later> a (bifrost.ref), 2: set<string> b (bifrost.ref), 3: map<binary, set<A>> c (bifrost.ref), 4: Nested d (bifrost.ref),
    5: list<bool> e (bifrost.ref), 6: list<Colour> f (bifrost.ref), 7: string g (bifrost.ref), 8: list<Either> h (bifrost.ref), 9: Blobs i (bifrost.ref),
    10: list<list<double>> j (bifrost.ref), 11: list<A> k (bifrost.ref), 12: map<i8, map<i16, Nothing>> l (bifrost.ref), 13: requiredly m (bifrost.ref)) (bifrost.ref)
  void plain(),
  oneway void away(1: B raw (bifrost.ref));
  async void old(1: A a)
  binary (kind = "raw") typed(1: string (x) text, 2: binary (y = "z") raw (bifrost.ref)) throws (1: Failed f) (bifrost.ref, bare),
}
