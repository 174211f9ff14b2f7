// What stands in front of definitions.
/** A comment of documentation, **/ /**/ /***/
# of Unix
include "sub/included.thrift"
include 'result.thrift'
cpp_include "<vector>"
namespace * corpus.any
namespace go corpus.headers (made = "by hand", bare)
namespace java.x corpus.java

typedef included.Text Words;
typedef result.Outcome Outcome,
typedef list<included.Point> Line typedef i32 Same

service Headers extends included.Base {
  result.Outcome read(1: included.Point at (bifrost.ref), 2: Words words (bifrost.ref), 3: Line line) (bifrost.ref)
  list<result.Outcome> all(1: Line line, 2: included.Colour colour = included.Colour.RED)
}
