#!/bin/sh
# Wait for the result of one of Ansible's jobs. Standard input is a line: the job's id, a time limit in seconds and the path
# of the job's status file. They are no arguments, in which the search for the job's processes would find this one.
# Exit status: 0 with a result, 3 if the job has ended without one (killed, or the host was restarted), 4 at the time limit.
read -r job seconds results
end=$(($(date +%s) + seconds))
name=${job%%.*} # of the processes; Ansible adds the first one's number to the id
pattern="${name%?}[${name#"${name%?}"}]" # the brackets keep grep from finding itself

has_result() { grep -Eqs '"(changed|failed)":' "$results"; }

until has_result; do
  if ! grep -qs "$pattern" /proc/[0-9]*/cmdline; then
    has_result && break # it ended between the two looks
    exit 3
  fi
  if [ "$(date +%s)" -ge "$end" ]; then
    echo "Job $job has no result after $seconds s." >&2
    exit 4
  fi
  sleep 1
done
