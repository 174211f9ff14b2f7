/**
 * A pipeline of services that hand a text on by reference: each works on what it
 * was lent, lends the next what it has made, and returns what comes back.
 */
namespace go pipeline

/** A stage cannot work on the text. */
exception BadText {
  1: string stage
  2: i64 offset
  3: string why
}

service Stage {
  /** Sends a text through this stage and all that follow. */
  binary run(1: binary text (bifrost.ref)) throws (1: BadText bad) (bifrost.ref)
}
