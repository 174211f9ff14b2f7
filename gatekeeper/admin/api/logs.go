package api

import "time"

// Logs is a part of what programs have printed, in the order of the times.
type Logs struct {
	Items   []LogLine         `json:"items"`
	Next    string            `json:"next" doc:"Where to go on, as cursor; also when there is nothing more yet"`
	More    bool              `json:"more,omitempty" doc:"There are further lines already"`
	Silent  map[string]string `json:"silent,omitempty" doc:"Blades that have not answered, with the reason: their lines are missing"`
	Dropped uint64            `json:"dropped,omitempty" doc:"How many lines the blades could not keep, for want of room on their disks"`
}

// LogLine is one line that a program has printed.
type LogLine struct {
	Time    time.Time `json:"time" doc:"When, by the blade's clock"`
	Blade   string    `json:"blade" example:"s2"`
	Program string    `json:"program" doc:"The instance" example:"shop/arrays/1"`
	Text    string    `json:"text"`
}
