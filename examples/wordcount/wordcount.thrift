/**
 * Words counted by many: parts of a text are mapped to counts, and counts are
 * merged, two at a time. Text and counts stay in distributed memory all the way.
 */
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

/** How far a job has come: what its main goes on from after a crash. */
struct Progress {
  /** The files before this one are counted, and so many bytes of it. */
  1: i32 file
  2: i64 offset
  3: Counts total
}
