package gen

import (
	"fmt"
	"strings"
	"testing"
)

const described = `include "bifrost.thrift" include "other.thrift"
enum E { A, B, C = 9, D, N = -1, M }
typedef list<E> Es
/** A node. */
struct Node { 1: required string name, 2: optional Node next, 3: i32 n = 4, 4: Es es, i8 unnumbered }
service Base { void ping() }
/** Ours. */
service S extends Base {
  /** Finds it.
    * Or not. */
  Node find(1: binary where (bifrost.ref), 2: map<E, set<i64>> what) throws (1: X x) (bifrost.policy = "none")
  oneway void note(1: other.Thing t)
  void loops(1: Loop a)
  bifrost.GlobalPointer pointer(1: Twice t)
} (bifrost.policy = "recover")
exception X { 1: i64 n }
typedef list<Loop> Loop
struct Twice { 1: i32 a, 1: i32 b }`

// TestDescribe: a text's services as callers without generated code see them.
func TestDescribe(t *testing.T) {
	services, err := Describe(described)
	if err != nil || len(services) != 2 || services[1].Name != "S" {
		t.Fatalf("%+v, %v", services, err)
	}
	var got []string
	for _, m := range services[1].Methods {
		line := fmt.Sprintf("%s policy %q oneway %t", m.Name, m.Policy, m.Oneway)
		for _, f := range m.Arguments {
			line += fmt.Sprintf(" %d:%s:%s:%t", f.ID, f.Name, f.Type.Kind, f.ByReference)
		}
		if m.Problem != nil {
			line += " problem: " + m.Problem.Error()
		}
		got = append(got, line)
	}
	want := []string{
		`find policy "none" oneway false 1:where:binary:true 2:what:map:false`,
		`note policy "recover" oneway true problem: field t: type Thing is not defined in other.thrift, or that is not part of the published text`,
		`loops policy "recover" oneway false problem: field a: type Loop is defined by itself`,
		`pointer policy "recover" oneway false 1:t:struct:false problem: field b: another one has its number 1, or its name`,
		`ping policy "" oneway false`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("methods:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	find := services[1].Methods[0]
	if find.Doc != "Finds it.\nOr not." || find.Throws[0].Type.Name != "X" || find.Throws[0].Type.Kind != Exception {
		t.Errorf("find: %+v", find)
	}
	node := find.Result
	if node.Doc != "A node." || node.Fields[1].Type != node || node.Fields[0].Optional || !node.Fields[1].Optional || !node.Fields[2].Optional ||
		node.Fields[3].Optional || node.Fields[4].ID != -1 {
		t.Errorf("node: %+v", node)
	}
	if e := node.Fields[3].Type.Elem; fmt.Sprint(e.Values) != "[{A 0} {B 1} {C 9} {D 10} {N -1} {M 0}]" {
		t.Errorf("enum: %v", e.Values)
	}
}

// manyTypes is a type that typedefs make large: each has the one before twice.
func manyTypes() string {
	text := "typedef i32 T0\n"
	for i := range 40 {
		text += fmt.Sprintf("typedef map<T%d, T%d> T%d\n", i, i, i+1)
	}
	return text + "service S { void m(1: T40 x) }"
}

// TestDescribe_Large: a text of few bytes cannot ask for much memory.
func TestDescribe_Large(t *testing.T) {
	services, err := Describe(manyTypes())
	if err != nil || services[0].Methods[0].Problem == nil {
		t.Errorf("%v, %v", services, err)
	}
}

// FuzzDescribe: whatever programs publish as their IDL, it is read or refused.
func FuzzDescribe(f *testing.F) {
	f.Add(described)
	f.Add(manyTypes())
	f.Add(`service A extends B {} service B extends A {}`)
	f.Fuzz(func(t *testing.T, text string) {
		services, err := Describe(text)
		if err != nil {
			return
		}
		for _, s := range services {
			for _, m := range s.Methods {
				if m.Problem == nil && m.Result != nil && m.Result.size == 0 {
					t.Errorf("%s.%s: %+v", s.Name, m.Name, m)
				}
			}
		}
	})
}
