package packet

// ParsePolicy reads what Policy.String writes; it reports false for anything else.
func ParsePolicy(s string) (Policy, bool) {
	for p := PolicyNone; p <= PolicyTainted; p++ {
		if p.String() == s {
			return p, true
		}
	}
	return PolicyNone, false
}
