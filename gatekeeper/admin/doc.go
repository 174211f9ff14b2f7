// Package admin is the Gatekeeper's admin API and page: what a person, a script or
// a monitoring system sees of a rack, and does to it.
//
//	browser, curl,          HTTP            ┌─ auth ─ limits ─ count ─┐
//	bifrost status  ──────────────────────▶ │ ServeMux                │
//	                 TCP: token (and TLS)   │  /v1/...  (huma, JSON)  │ Overview, Regions, ...
//	                 Unix socket: its mode  │  /v1/events     (SSE) ◀─┼─ hub ◀─ Subscribe ─┐
//	                                        │  /metrics               │                    │
//	                                        │  /healthz, /readyz, /   ├──────────────▶ Gatekeeper
//	                                        └─────────────────────────┘
//
// The JSON is defined by package api; the OpenAPI document is made from the same Go
// types and operations that serve it. Nothing here has state of the rack: every
// answer is asked of the Gatekeeper's loop, and only the latest events are kept,
// for readers that were away.
//
// Who may do what: a Unix socket belongs to the user who started the Gatekeeper,
// and whoever can open it is let in. Over TCP every request needs the bearer
// token, the page itself, its description and the health checks excepted, which
// tell nothing about the rack. Beyond loopback, Listen insists on TLS.
package admin
