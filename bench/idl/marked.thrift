/** The arrays with values that travel by reference, as a program of the rack declares them. */
namespace go marked

service Marked {
  binary increment(1: binary data (bifrost.ref), 2: i8 delta) (bifrost.ref)
  binary add(1: binary a (bifrost.ref), 2: binary b (bifrost.ref)) (bifrost.ref)
}

/** Ways to use a value: all of it is read, or one page, it is returned, or passed on and then read. It travels as the runtime likes. */
service Chosen {
  i64 whole(1: binary data (bifrost.ref))
  i64 page(1: binary data (bifrost.ref))
  binary back(1: binary data (bifrost.ref)) (bifrost.ref)
  i64 onward(1: binary data (bifrost.ref), 2: i32 left)
}

/** The same inside messages always. */
service ByValue {
  i64 whole(1: binary data (bifrost.ref = "value"))
  i64 page(1: binary data (bifrost.ref = "value"))
  binary back(1: binary data (bifrost.ref = "value")) (bifrost.ref = "value")
  i64 onward(1: binary data (bifrost.ref = "value"), 2: i32 left)
}

/** The same in memory always. */
service ByRegion {
  i64 whole(1: binary data (bifrost.ref = "region"))
  i64 page(1: binary data (bifrost.ref = "region"))
  binary back(1: binary data (bifrost.ref = "region")) (bifrost.ref = "region")
  i64 onward(1: binary data (bifrost.ref = "region"), 2: i32 left)
}

struct Post {
  1: i64 id
  2: string author
  3: binary text
}

/** Some of DeathStarBench's services return such lists. */
service Posts {
  list<Post> latest(1: i32 count, 2: i32 size) (bifrost.ref = "region")
}
