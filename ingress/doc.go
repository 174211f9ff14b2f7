// Package ingress lets programs outside of the rack call its services by HTTP. It runs as a program of the rack (`bifrost ingress`).
//
//	POST /call/SERVICE/METHOD    calls, with the arguments as a JSON object (package thriftjson)
//	GET /outcome/KEY             the answer to the call with an idempotency key
//	GET /openapi.json, GET /     the services: as an OpenAPI document, and as a page with forms
//
// A call without an Idempotency-Key header is one call of the ingress' node. A call with such a header is durable: once the ingress has
// accepted it, it runs exactly once though ingress and client die, and whoever comes with the key later gets its answer. The construction
// uses nothing but exactly-once calls and state:
//
//	HTTP ── call ──▶ Caller (no state) ── claim ──▶ Keys (state: key → request, outcome)
//	                    │ ◀── FRESH ─────────────────┘
//	                    ├── the client's call ──▶ the service
//	                    └── settle ──▶ Keys: then the client is answered
//
// Both services are the ingress' own. An execution of Caller is in the ledger before it claims the key. So if the ingress dies, its next
// incarnation runs the execution again: the claim, the call and the settlement are repeated under the same ids, and find their recorded
// answers. Nobody else can have claimed the key meanwhile, since Keys runs one call at a
// time. A call that has certainly never begun gives its key back: the next request with it makes the call.
//
// The deadline of a request with a key bounds how long the request waits, not how long the call runs.
package ingress
