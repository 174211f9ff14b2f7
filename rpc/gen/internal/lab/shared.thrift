/** What the laboratory's other files include. */
namespace go shared

struct Frame {
  1: required i32 width
  2: required i32 height
  3: list<binary> planes
}

exception Broken { 1: string why }

/** A service to extend that knows references. */
service Store {
  /** Counts the bytes of a film. */
  i64 count(1: binary film (bifrost.ref))
  string label(1: string text)
}
