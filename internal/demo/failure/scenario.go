package failure

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// moment is when a blade dies.
type moment int

const (
	never     moment = iota
	arriving         // the call is about to reach the callee
	executing        // the callee has written to memory, and has not answered
	answered         // the caller has its answer, and has not committed
	counted          // a certain packet is on its way
)

// Scenario is who dies when.
type Scenario struct {
	// Name is what --fail calls it.
	Name string
	// Title says in a line who dies when, Story what must come of it.
	Title, Story string
	// victims are the blades; front says that the call goes by way of Front.
	victims []string
	memory  bool // the victim is the memory blade that has the first copy
	front   bool
	moment  moment
	packet  int // for counted: which, from 1
}

// Random is the name of the scenario that a seed decides.
const Random = "random"

// Scenarios are all but Random, in the thesis's order (figure 4.2) first.
var Scenarios = []Scenario{
	{
		Name: "f1", Title: "The caller dies while the callee executes", victims: []string{caller}, moment: executing,
		Story: "The callee runs on, and its ledger has the answer. The caller's re-run makes the call again, and gets it.",
	},
	{
		Name: "f2", Title: "The caller dies when it has the answer, which it has done nothing with yet", victims: []string{caller}, moment: answered,
		Story: "The caller's re-run makes the call again. The callee has the answer in its ledger: its handler does not begin again.",
	},
	{
		Name: "f3", Title: "The callee dies before the call reaches it", victims: []string{callee}, moment: arriving,
		Story: "The caller waits, and sends the call again to the same address. There, the callee's next incarnation executes it.",
	},
	{
		Name: "f4", Title: "The callee dies in the middle of its execution", victims: []string{callee}, moment: executing,
		Story: "What it has written to memory is taken back, and its next incarnation executes the call from the start.",
	},
	{
		Name: "nested", Title: "A callee dies that waits for a call of its own", victims: []string{front}, front: true, moment: executing,
		Story: "The inner call runs on with what it was lent. Only when it is over does the outer one run again, and finds its answer.",
	},
	{
		Name: "both", Title: "Caller and callee die together", victims: []string{caller, callee}, moment: executing,
		Story: "The callee's execution is taken back and runs again; then its answer waits for the caller's re-run.",
	},
	{
		Name: "memory", Title: "The memory blade that answers reads dies while the callee executes", memory: true, moment: executing,
		Story: "The other memory blade has a copy of everything: it answers from then on, and the execution goes on where it was. " +
			"The dead one is filled when it is back; then the other may die, too.",
	},
}

// Named returns the scenario of a name.
func Named(name string) (Scenario, error) {
	k := slices.IndexFunc(Scenarios, func(s Scenario) bool { return s.Name == name })
	if k < 0 {
		return Scenario{}, fmt.Errorf("there is no failure %q: want one of %s", name, strings.Join(Names(), ", "))
	}
	return Scenarios[k], nil
}

// Names are the names of all scenarios.
func Names() (all []string) {
	for _, s := range Scenarios {
		all = append(all, s.Name)
	}
	return append(all, Random)
}

// crashFree is what a random scenario is measured by.
var crashFree = Scenario{Name: Random, Title: "Nobody dies", front: true}

// random returns the scenario of a seed for a run that sends so many packets.
func random(seed uint64, packets int) Scenario {
	r := rand.New(rand.NewPCG(seed, 0xfa11))
	victims := [][]string{{caller}, {front}, {callee}, {caller, callee}, {caller, front}, {front, callee}, {caller, front, callee}}
	s := Scenario{
		Name: Random, victims: victims[r.IntN(len(victims))], front: true, moment: counted, packet: 1 + r.IntN(max(packets, 1)),
		Story: "Whoever it hits, and whenever: nothing is lost, and nothing happens twice.",
	}
	s.Title = fmt.Sprintf("Seed %d: %s lose their power at packet %d of some %d", seed, list(s.victims), s.packet, packets)
	if len(s.victims) == 1 {
		s.Title = fmt.Sprintf("Seed %d: %s loses its power at packet %d of some %d", seed, s.victims[0], s.packet, packets)
	}
	return s
}

// list joins words as people do.
func list(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}
