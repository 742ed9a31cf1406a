#!/usr/bin/env bash
# Checks the model of the protocol, docs/model, in each of its configurations:
# exhaustively, within the bounds that stand there. Arguments are names of
# configurations; none means all. With "mutants" first, it puts each fault of
# docs/model/mutants.txt into the model and demands that the claim named there
# fails. It needs spin and a C compiler; as root on Debian and Ubuntu it installs
# them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/servers.sh
source scripts/servers.sh

model=$PWD/docs/model
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
((jobs <= 4)) || jobs=4

need() { # need COMMAND PACKAGE...
	local command=$1
	shift
	command -v "$command" >/dev/null && return
	if ! can_install || ! apt_install "$@"; then
		say "$command is missing: install it (on Debian: apt-get install $*)"
		exit 1
	fi
}
need spin spin
need gcc gcc libc6-dev

# field FILE NAME NUMBER: a column of the line of that name.
field() { awk -F ' *[|] *' -v name="$2" -v n="$3" '$1 == name { print $n; exit }' "$1"; }

defines() {
	local word
	for word in $1; do printf -- '-D%s ' "$word"; done
}

# check DIRECTORY DEFINES...: leaves the verifier's report in out.
check() {
	local dir=$1 compile=-DSAFETY run=-E
	shift
	mkdir -p "$dir"
	cp "$model"/*.pml "$dir"
	cd "$dir"
	if [[ " $* " == *" -DENDS "* ]]; then
		compile=-DNFAIR=3 run='-a -f'
	fi
	spin -a "$@" bed.pml >spin.out 2>&1 || return 1
	# It takes longer to optimize than to run.
	gcc -O0 -w $compile -DMEMLIM=6000 -o pan pan.c || return 1
	# shellcheck disable=SC2086
	./pan $run -m2000000 >out 2>&1 || true
}

# configuration NAME: one line that says how it went.
configuration() {
	local name=$1 begun=$SECONDS dir=$work/$1 said
	# shellcheck disable=SC2046 # several words on purpose
	if ! (check "$dir" $(defines "$(field "$model/configurations.txt" "$name" 2)")); then
		echo "$name: the model cannot be compiled"
		return 1
	fi
	said=$(grep -aoE '^ *[0-9.e+]+ states, (stored|visited)' "$dir/out" | head -n 1 | tr -s ' ')
	if grep -aq 'errors: 0$' "$dir/out" && ! grep -aqE 'Search not completed|search depth too small' "$dir/out"; then
		printf '%-18s all claims hold   %s, %d s\n' "$name" "$said" $((SECONDS - begun))
		return
	fi
	printf '%-18s FAILS: %s\n' "$name" "$(grep -aE '^claim failed|^pan:1|not completed|too small|reached' "$dir/out" | sort -u | head -n 3 | tr '\n' ' ')"
	echo "see how: (cd $model && spin -a $(defines "$(field "$model/configurations.txt" "$name" 2)")bed.pml && gcc -DSAFETY -o pan pan.c && ./pan -E -m2000000; ./pan -r bed.pml.trail -v)"
	return 1
}

# mutant LINE: one line of the table, which mutant is found by which claim.
mutant() {
	local name=$1 where=$2 bounds=$3 claim=$4 dir=$work/$1.$2 found
	# shellcheck disable=SC2046
	(check "$dir" $(defines "$(field "$model/configurations.txt" "$where" 2) $bounds") "-D$name") || return 1
	found=$(sed -nE 's/^claim failed: (\w+).*/\1/p' "$dir/out" | sort -u)
	if grep -aq '^pan:1: acceptance cycle' "$dir/out"; then
		found=$(sed -nE 's/^ltl (\w+) .*/\1/p' "$model/bed.pml") # the one that there is
	fi
	if [[ $found == "$claim" ]]; then
		printf '%-45s %-18s %s\n' "$name" "$where" "$found"
		return
	fi
	printf '%-45s %-18s NOT FOUND by %s, but by: %s\n' "$name" "$where" "$claim" "${found:-nothing}"
	return 1
}

# each FUNCTION: runs it for each line of stdin, N at a time.
each() {
	local failed=0 running=0 line
	while read -r line; do
		IFS='|' read -ra args <<<"$line"
		"$1" "${args[@]}" &
		((++running < jobs)) || { wait -n || failed=1; running=$((running - 1)); }
	done
	while ((running > 0)); do
		wait -n || failed=1
		running=$((running - 1))
	done
	return $failed
}

lines() { grep -vE '^(#|$)' "$1" | sed -E 's/ *[|] */|/g'; }

if [[ ${1:-} == mutants ]]; then
	shift
	lines "$model/mutants.txt" | { if (($#)); then grep -E "^($(IFS='|'; echo "$*"))[|]"; else cat; fi; } | each mutant
	exit
fi
lines "$model/configurations.txt" | cut -d '|' -f 1 | { if (($#)); then grep -xE "$(IFS='|'; echo "$*")"; else cat; fi; } | each configuration

# A step that no configuration takes would make the claims hollow.
if ((!$#)); then
	taken=$(cat "$work"/*/out | sed -n 's/^step: //p' | sort -u)
	named=$(grep -ahoE 'STEP\(\w+\)' "$model"/*.pml | sed -E 's/STEP\((.*)\)/\1/' | grep -vx name | sort -u)
	if [[ $taken != "$named" ]]; then
		say "steps that no configuration takes: $(comm -13 <(echo "$taken") <(echo "$named") | tr '\n' ' ')"
		exit 1
	fi
	say "all $(wc -l <<<"$named") steps are taken"
fi
