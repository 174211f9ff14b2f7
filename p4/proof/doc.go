// Package proof proves what p4/bifrost.p4 promises, for all packets and all contents
// of the tables. The prover is prove.py, which executes the compiled program
// symbolically (p4switch/validate/symbolic.py) and asks Z3 for a packet that breaks a theorem. verdicts.py
// says of every packet what becomes of it, which counters count it, and what a digest
// tells of it; theorems.py says what that is good for: who may do what. Faults that are
// put into the program (mutants.py) have to be found.
//
//	make proof                                 theorems and mutants, some minutes
//	/usr/bin/python3 p4/proof/prove.py --help
//
// rows.py proves that no message of a node passes that was not judged (docs/rights.md), whatever port it goes to. The other
// theorems are about all other packets: requests to memory and its answers are judged, too.
//
// A register is an array of which nothing is known at the start. What packets do to rights in
// registers, rights.py proves action by action (docs/rights.md, section 10): the prover of whole
// packets does not follow these actions. From what rights.py proves, invariants.py proves that each
// action keeps the invariants of the registers. registers.py proves a small program that has a register.
//
// The tests of this package run the prover, and run what it says about the mutants on
// both executors: so the prover's idea of the program is that of the switches.
package proof
