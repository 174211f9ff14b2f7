// Package bifrosttest runs a whole rack in a test: the compiled P4 program in the software
// switch, the Gatekeeper with its log, the blades' daemons, and your programs. It needs no
// root and no network. Time is virtual, so a minute of waiting costs nothing, and a seed
// replays a run.
//
//	func TestCounter(t *testing.T) {
//		bifrosttest.Run(t, bifrosttest.Config{}, func(t *testing.T, r *bifrosttest.Rack) {
//			server := r.Node("s1", "server")
//			// export a service with [rpc.Node.Export] or its generated stub
//			client := r.Client()
//			// call it
//		})
//	}
//
// To see what crashes do, let the rack start the programs, for only those it starts again:
//
//	app.yaml ─▶ Gatekeeper ─▶ daemons ─▶ Config.Programs, functions in place of executables
//	Kill, CrashBlade, CrashGatekeeper, Trouble ──▶ break what runs
//
// [Rack.Deploy] reads the same file as `bifrost deploy`.
//
// [Start] starts a rack in real time, without a test: the Examples of packages rpc and dsm
// do so, and can be copied.
package bifrosttest
