package api

// Cause says why somebody does something to the rack, for people.
type Cause struct {
	_     struct{} `additionalProperties:"false"`
	Cause string   `json:"cause,omitempty" maxLength:"200" doc:"Why, for people; it is shown with the blade and in events" example:"new fans"`
}

// Reconciled is what reading the switch's tables back has led to.
type Reconciled struct {
	Repaired int `json:"repaired" doc:"Entries that were wrong, missing or not wanted, and are right now"`
}

// MirrorOnto names the blade that is to hold a machine's second copy.
type MirrorOnto struct {
	Onto string `json:"onto" minLength:"1" maxLength:"255" doc:"A memory blade that serves nothing" example:"m2"`
}
