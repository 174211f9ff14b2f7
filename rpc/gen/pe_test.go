package gen
import "testing"
func TestX(t *testing.T){ _,err:=parseText("a","struct X {\n 1: i32 a\n 2: oops\n}\n"); t.Log(err)
 u, err := parseText("a", complete("service L { binary d(1: binary raw (bifrost.ref), 2: i32 x) throws (1: C c) (bifrost.ref) } (bifrost.state, a.b='x')", lex("service L { binary d(1: binary raw (bifrost.ref), 2: i32 x) throws (1: C c) (bifrost.ref) } (bifrost.state, a.b='x')"))); t.Log(u, err)}
