// Package bench measures Bifröst beside what one would use instead, on one rack and
// in one run: the experiments of the thesis's chapter 7, and some of its own.
//
//	 c1 (a CPU)            switch          s1 (a CPU)
//	┌────────────┐        ┌──────┐        ┌────────────┐
//	│ agent:     ├────────┤      ├────────┤ agent:     │
//	│ the client │        │      │        │ the server │
//	└────────────┘        └──────┘        └────────────┘
//	      ▲  lines of JSON                      ▲
//	      └───────────── the harness ───────────┘
//
// Every contender of an experiment has its processes up from the beginning, and
// they take turns: each repeat measures every contender once, so what else happens
// on the machine meets all of them. Numbers are medians over the repeats, and mean
// something only as ratios within a run.
//
// The rooms: peer is what is compared, agent the processes on the blades, topology
// the rack, stats the arithmetic, report what comes of it, plots its pictures.
// Package bench itself is the harness (lab.go, contest.go) and the experiments, a file
// for each kind.
package bench
