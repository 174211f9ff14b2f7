/**
 * Words counted by many: parts of a text are mapped to counts, and counts are
 * merged, two at a time. Text and counts stay in distributed memory all the way.
 */
include "../../rpc/idl/bifrost.thrift"

namespace go wordcount

/** How often each word occurs. */
struct Counts {
  1: map<string, i64> words
}

service Mapper {
  /** Counts the words of a text. */
  Counts count(1: binary text (bifrost.ref)) (bifrost.ref, bifrost.policy = "recover")
}

service Reducer {
  /** Adds up two counts. */
  Counts merge(1: Counts a (bifrost.ref), 2: Counts b (bifrost.ref)) (bifrost.ref, bifrost.policy = "recover")
}

/** Texts that stand in distributed memory once, for as many readers as come. */
service Corpus {
  /** How many texts there are, from 0. */
  i32 size() (bifrost.policy = "none")
  /** Lets the caller's node read a text for as long as it likes. */
  bifrost.Lease open(1: i32 text) (bifrost.policy = "none")
}

/** How far a job has come: what its main goes on from after a crash. */
struct Progress {
  /** The files before this one are counted, and so many bytes of it. */
  1: i32 file
  2: i64 offset
  3: Counts total
}
