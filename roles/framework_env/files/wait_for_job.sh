#!/bin/sh
# Wait until one of Ansible's asynchronous jobs has a result. Standard input is one line: the job's id, a time limit in
# seconds and the path of the job's status file. As arguments they would be on this script's command line, where the search
# for the job's processes would find them.
# Exit status: 0 with a result, 3 if the job has ended without one (killed, or the host was restarted), 4 at the time limit.
read -r job seconds results
end=$(($(date +%s) + seconds))
name=${job%%.*} # the id is NAME.PID, and the processes have NAME on their command lines
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
