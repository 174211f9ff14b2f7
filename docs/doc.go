// Package docs has the documentation for people; its tests run what the documentation
// says.
package docs
