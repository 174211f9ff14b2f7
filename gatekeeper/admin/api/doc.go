// Package api defines what the Gatekeeper's admin API says: the JSON of version
// v1, as Go types, shared by the server (package admin) and its client (package
// client). The OpenAPI document at /v1/openapi.json is made from these types; what
// a field means stands in its doc tag, and only there.
//
// Within v1, fields and kinds of events are added but never removed or given
// another meaning; readers have to ignore what they do not know.
package api
