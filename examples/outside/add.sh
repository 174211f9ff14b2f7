#!/bin/sh
# Adds to an account of the Counter from outside of the rack, exactly once:
#
#	./add.sh http://127.0.0.1:8046 1 100
#
# All attempts have one key, so the call runs once, whatever breaks meanwhile.
key=$(cat /proc/sys/kernel/random/uuid 2>/dev/null || uuidgen)
amounts=$(printf "\\$(printf %o "$3")" | base64)
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT
for attempt in $(seq 60); do
	status=$(curl --silent --output "$answer" --write-out '%{http_code}' \
		--header "Content-Type: application/json" --header "Idempotency-Key: \"$key\"" --header "Prefer: wait=10" \
		--data "{\"account\": $2, \"amounts\": \"$amounts\"}" "$1/call/Counter/add")
	case $status in
	000 | 409 | 429 | 503 | 504) sleep 1 ;; # the ingress is away, or busy, or the call runs still
	*) break ;;
	esac
done
if [ "$status" = 200 ]; then
	echo "account $2 has $(cat "$answer")"
else
	cat "$answer" >&2
	exit 1
fi
