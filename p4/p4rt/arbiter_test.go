package p4rt

import (
	"testing"

	"google.golang.org/grpc/codes"
)

func TestSection5_Arbitration_FirstControllerIsPrimary(t *testing.T) {
	virtual(t, func(b *bench) {
		c := b.dial()
		c.arbitrate(3)
		c.expectArbitration(codes.OK, 3)
		c.silent()
	})
}
