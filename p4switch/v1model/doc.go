// Package v1model is the model of a compiled P4 program for the v1model
// architecture: what p4c's bmv2 back end wrote as JSON, read, resolved and
// checked once, so that an executor need not look at a name or a string again.
//
//	bmv2 JSON ──Load──▶ *Program ──▶ package interp (closures, in Go)
//	                             └─▶ package ebpf   (kernel code)
//
// A Program is what the compiler said, not how to run it: header layouts, a
// parser as a graph of states, two pipelines as graphs of tables and
// conditions, actions as lists of statements over expression trees. The path of
// a packet through it is
//
//	Parser → verify Checksums → Ingress → Egress → update Checksums → Deparser
//
// Load does no I/O and a Program never changes afterwards; it may be shared.
// What is malformed or not supported is refused by Load with an *Error that
// names the place; an executor can therefore trust every reference, width,
// kind and jump target, and that pipelines end.
package v1model
