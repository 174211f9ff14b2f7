/**
 * A feed whose timeline is longer than anybody reads: the caller gets a reference to
 * the list, and reads of it what it shows.
 */
namespace go feed

struct Post {
  1: i64 number
  2: string author
  3: string text
  4: binary picture
}

service Feed {
  /** All posts, the newest first. The list is the caller's, who frees it. */
  list<Post> timeline() (bifrost.ref = "region")
}
