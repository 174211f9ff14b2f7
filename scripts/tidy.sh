#!/usr/bin/env bash
# go mod tidy for each module of this checkout. Bifröst's requires the switch's at a version that may not be published yet, so it is tidied with
# the directory in its place; then the replacement goes, since go install refuses a module with one.
set -eu
cd "$(dirname "$0")/.."
export GOWORK=off
switch=github.com/bifrost-rack/bifrost/p4switch
sums=$(grep "^$switch " go.sum || true) # of the release, if it is published
restore() {
  go mod edit -dropreplace "$switch"
  [ -z "$sums" ] || printf '%s\n' "$sums" >>go.sum
}
trap restore EXIT
go mod edit -replace "$switch=./p4switch"
for module in p4switch . bench checks internal/crash; do
  go -C "$module" mod tidy
done
