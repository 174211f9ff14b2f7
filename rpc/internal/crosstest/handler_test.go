package crosstest

import (
	"context"
	"errors"

	c "github.com/bifrost-rack/bifrost/rpc/internal/crosstest/gen-go/crosstest"
)

// handler returns what it is given.
type handler struct{ later chan int32 }

var _ c.Cross = (*handler)(nil)

func (*handler) Nothing(context.Context) error                                  { return nil }
func (*handler) Text(_ context.Context, v string) (string, error)               { return v, nil }
func (*handler) Truth(_ context.Context, v bool) (bool, error)                  { return v, nil }
func (*handler) Tiny(_ context.Context, v int8) (int8, error)                   { return v, nil }
func (*handler) Small(_ context.Context, v int16) (int16, error)                { return v, nil }
func (*handler) Medium(_ context.Context, v int32) (int32, error)               { return v, nil }
func (*handler) Large(_ context.Context, v int64) (int64, error)                { return v, nil }
func (*handler) Real(_ context.Context, v float64) (float64, error)             { return v, nil }
func (*handler) Raw(_ context.Context, v []byte) ([]byte, error)                { return v, nil }
func (*handler) Digit(_ context.Context, v c.Digit) (c.Digit, error)            { return v, nil }
func (*handler) Account(_ context.Context, v c.Account) (c.Account, error)      { return v, nil }
func (*handler) Scalars(_ context.Context, v *c.Scalars) (*c.Scalars, error)    { return v, nil }
func (*handler) Nest(_ context.Context, v *c.Nest) (*c.Nest, error)             { return v, nil }
func (*handler) Either(_ context.Context, v *c.Either) (*c.Either, error)       { return v, nil }
func (*handler) Defaults(_ context.Context, v *c.Defaults) (*c.Defaults, error) { return v, nil }
func (*handler) Empty(_ context.Context, v *c.Empty) (*c.Empty, error)          { return v, nil }
func (*handler) Members(_ context.Context, v []int32) ([]int32, error)          { return v, nil }
func (*handler) Sequence(_ context.Context, v []int32) ([]int32, error)         { return v, nil }
func (*handler) Bonks(_ context.Context, v c.Bonks) (c.Bonks, error)            { return v, nil }
func (*handler) Narrow(_ context.Context, v *c.Narrow) (*c.Narrow, error)       { return v, nil }

func (*handler) Numbers(_ context.Context, v map[int32]int32) (map[int32]int32, error) { return v, nil }

func (*handler) Texts(_ context.Context, v map[string]string) (map[string]string, error) {
	return v, nil
}

// Square returns tables of n rows.
func (*handler) Square(_ context.Context, n int32) (map[int32]map[int32]int32, error) {
	rows := map[int32]map[int32]int32{}
	for i := -n; i <= n; i++ {
		rows[i] = map[int32]int32{i: i, n: i * n}
	}
	return rows, nil
}

func (*handler) Jungle(_ context.Context, v *c.Jungle) (map[c.Account]map[c.Digit]*c.Jungle, error) {
	return map[c.Account]map[c.Digit]*c.Jungle{1: {c.Digit_TWO: v, c.Digit_THREE: v}, 2: {c.Digit_EIGHT: {}}}, nil
}

func (*handler) Gather(_ context.Context, tiny int8, medium int32, large int64, texts map[int16]string, digit c.Digit, account c.Account) (*c.Scalars, error) {
	return &c.Scalars{Text: texts[-1] + digit.String(), Tiny: tiny, Medium: medium, Large: large + int64(account)}, nil
}

func (*handler) Fail(_ context.Context, how string) error {
	switch how {
	case "declared":
		return &c.Failure{Code: 1001, Message: how}
	case "undeclared":
		return errors.New("quite another failure")
	}
	return nil
}

func (*handler) FailTwice(_ context.Context, first, second string) (*c.Scalars, error) {
	switch first {
	case "first":
		return nil, &c.Failure{Code: 1001, Message: second}
	case "second":
		return nil, &c.Detailed{Code: 2002, Scalars: &c.Scalars{Text: second}}
	}
	return &c.Scalars{Text: second}, nil
}

func (h *handler) Later(_ context.Context, number int32) error {
	h.later <- number
	return nil
}

// second implements Extended, and so Second.
type second struct{}

var _ c.Extended = second{}

func (second) Text(_ context.Context, v string) (string, error)  { return "second " + v, nil }
func (second) Twice(_ context.Context, v string) (string, error) { return v + v, nil }
