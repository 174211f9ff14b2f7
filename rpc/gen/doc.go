// Package gen is the code generator behind "bifrost gen": it reads Thrift IDL in
// which arguments and results are marked (bifrost.ref), and writes Go stubs that
// pass them by reference, into the package that "thrift --gen go" makes of the
// same file. It is pure: files come from a function, and go to the caller.
//
//	    IDL text ─ lex ─ parse ─ load (includes) ─▶ unit (document)
//	                                                  │ resolve
//	File ◀─ render (template) ◀─ plan (Go names, wire forms) ◀─ check ◀┘
//
// The marks:
//
//	service Lab {
//	  // an argument, behind its name; the result, behind the method:
//	  binary develop(1: binary raw (bifrost.ref)) throws (1: Corrupt c) (bifrost.ref)
//	  i64 size(1: binary raw (bifrost.ref)) (bifrost.policy = "recover", bifrost.max_failures = "100")
//	} (bifrost.state)
//
// (bifrost.ref = "region") has a value stand in memory always, and (bifrost.ref = "value") has
// one that does not stand there travel inside messages always; else the runtime chooses (rpc.Ref).
//
// By reference goes every value but a single number, as long as no global pointer is
// inside: package form says how it stands in memory. bifrost.policy (recover, none, fate-share or tainted) says what
// becomes of a method's calls when a node fails, behind a service that it does so for
// all of its methods; bifrost.max_failures, at the same places, after how many ends of its program a call is given up
// (rpc.WithMaxFailures); bifrost.state (snapshot, the
// default, or incremental) that the service has state.
//
// The stub that exports a service publishes the text of its IDL (rpc.WithIDL).
//
// Programs in Python have no stubs: [Python] writes what they must know of the marks.
//
// On the wire a marked method has two forms. Under its own name it is what plain
// Thrift makes of the IDL, by value, and the stubs serve it as well: so plain
// clients and transports work. Under its name with ".ref" behind it, a
// bifrost.Reference stands wherever the IDL has a mark. That is a method of its own,
// so that a server which knows nothing of references refuses it by name instead of
// taking a reference for an empty value.
package gen
