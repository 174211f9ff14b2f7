// Package thriftjson turns JSON into the arguments of a call and a call's answer into JSON, by IDL that is read while the program
// runs. It is pure.
//
//	JSON ── Arguments ─▶ Thrift's binary protocol       (strict: whatever does not fit is a Mismatch)
//	JSON ◀── Answer ──── any Thrift protocol
//
// How each type stands in JSON:
//
//	bool                      true, false
//	i8, i16, i32              a whole number
//	i64                       a whole number; beyond ±(2^53-1), which JavaScript cannot hold, a string of digits.
//	                          Both are read, whatever the size
//	double                    a number, or "NaN", "Infinity", "-Infinity"
//	string                    a string
//	binary                    a string: base64 (RFC 4648) with padding
//	uuid                      a string: 00112233-4455-6677-8899-aabbccddeeff
//	enum                      the value's name. Its number is read, too
//	list, set                 an array. A set has no element twice
//	map                       an object, if its keys are a type above; else an array of pairs [key, value]
//	struct, exception         an object
//	union                     an object with one member
//
// An argument, or a field of a struct, may be missing or null if it is optional or has a default value. Global pointers mean
// something inside of the rack only, so methods with such are refused (Callable). Arguments and results that are marked
// (bifrost.ref) travel by value.
package thriftjson
