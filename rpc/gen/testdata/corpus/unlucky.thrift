// Names that the stubs use, or could.
namespace go corpus.unlucky
include "result.thrift"

struct New { 1: i32 New }
struct CallArgs { 1: New new_thing }
struct CallResult { 1: CallArgs args_ }
struct _Under { 1: i32 _x }
struct lower { 1: i32 a }
exception Wrong_ { 1: string _err }
struct Film { 1: string Title }

service S {
  CallResult sClient(1: binary stub (bifrost.ref), 2: i32 _args, 3: i32 _result, 4: i32 _out, 5: i32 _c, 6: i32 _h, 7: binary _ref0 (bifrost.ref),
    8: i32 __) throws (1: Wrong_ _err) (bifrost.ref)
  binary sRefClient(1: binary ctx_ (bifrost.ref), 2: i32 opts, 3: i32 rpc, 4: i32 node, 5: i32 bifrost, 6: i32 context) (bifrost.ref)
  void sRefHandler(1: CallArgs rune (bifrost.ref), 2: list<i32> int32 (bifrost.ref), 3: i32 iota, 4: i32 string_, 5: i32 error, 6: result.Outcome result (bifrost.ref))
  lower parent(1: lower lower (bifrost.ref), 2: binary refs (bifrost.ref), 3: Film Film (bifrost.ref), 4: _Under _Under (bifrost.ref)) (bifrost.ref)
  i32 plain(1: binary Binary (bifrost.ref), 2: i32 Type, 3: i32 Func, 4: i32 x_id)
  void newThing(1: New New (bifrost.ref)), void Values(1: binary a (bifrost.ref))
  binary call_args(1: binary a (bifrost.ref)) (bifrost.ref)
  void callResult(1: binary refSCallArgs (bifrost.ref))
  void serve(1: binary err (bifrost.ref), 2: i32 value, 3: i32 failure, 4: i32 w, 5: i32 args_, 6: i32 h, 7: i32 seq, 8: i32 in_, 9: i32 out)
}

// Together these could be taken for each other.
service A { void BC(1: binary a (bifrost.ref)) void plain(1: binary b (bifrost.ref)) }
service A_B { void C(1: binary a (bifrost.ref)) } (bifrost.state)
