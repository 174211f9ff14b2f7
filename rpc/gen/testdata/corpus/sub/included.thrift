namespace go corpus.included
typedef binary Text;
struct Point { 1: i32 x; 2: i32 y }
typedef Point Place,
enum Colour { RED, GREEN = 0x10; BLUE }
service Base { i64 size(1: Text text (bifrost.ref)); Point middle(1: Point a, 2: list<Point> b) }
