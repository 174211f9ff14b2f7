// Package inputs makes packets and table entries for any compiled program: it derives from the program what its parser accepts, what its conditions
// compare and what its tables match, so that packets meet entries and take many ways. Tests run them through executors and compare what comes out.
package inputs
