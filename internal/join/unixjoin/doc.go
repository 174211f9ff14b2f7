// Package unixjoin brings programs to their blade's compute daemon over a Unix
// socket. Joiner is the program's end (a join.Joiner), Serve the daemon's (for a
// join.Host).
//
// A connection is one node: it begins with a join and ends with a leave; a
// connection that ends without one is the end of the program. A "crash" says that it is not. Both sides speak in lines of JSON:
//
//	program ▶ {"id":1,"op":"join","name":"arrays"}
//	daemon  ▶ {"id":1,"joined":{...}}
//	program ▶ {"id":2,"op":"blocks","want":2}
//	daemon  ▶ {"id":2,"blocks":[5,9]}
//	program ▶ {"id":3,"op":"listen","address":"fd00:b1f0:0:3::17","port":45100}
//	daemon  ▶ {"id":3,"socket":true}         and, with the first byte, the socket (SCM_RIGHTS);
//	                                         with "relayed":true a stream of frames (package relay)
//	program ▶ {"id":4,"op":"export","export":{"service":"Arrays",...}}
//	daemon  ▶ {"id":4,"code":6,"message":"...","remote":true}
//	daemon  ▶ {"rack":{...}}                 no id: news, not a reply
//	program ▶ {"id":5,"op":"alive"}          I answer when I am asked whether I am
//	daemon  ▶ {"id":5}
//	daemon  ▶ {"ping":true}                  no id: a question, to be answered by an "alive"
//	program ▶ {"id":6,"op":"leave"}
//
// The other operations are "main", "who", "service", "serving", "sharing", "share", "calls", "ledger", "batches", "holdings" and "account", and
// "status", which needs no join. A program's requests are carried out one after the other, but for those that only ask
// or tell the Gatekeeper: nothing waits behind these.
package unixjoin
