#!/usr/bin/env bash
# The tour of the README with an installed wheel, in a folder that has nothing of the repository.
set -euo pipefail
bin=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export WHET_CACHE=$folder/cache HF_HUB_OFFLINE=1
cp "$here/docs/examples/reviews.csv" "$folder"
cd "$folder"
whet() { echo "\$ whet $*"; "$bin/whet" "$@"; }

"$bin/python" -c 'import whet, sys; assert "site-packages" in whet.__file__, whet.__file__; print("whet", whet.__version__)'
whet --version
whet check reviews.csv
whet train sample/pairs --max-steps 20 --run runs/pairs --quiet
whet train reviews.csv --max-steps 20 --run runs/reviews-001
whet predict runs/reviews-001 --text "The lid broke after a week."
whet predict runs/reviews-001 reviews.csv -o labelled.csv
whet predict runs/reviews-001 reviews.csv -o labelled.xlsx
whet evaluate runs/reviews-001 reviews.csv
whet verdict runs/reviews-001
whet runs
whet report runs/reviews-001
whet export runs/reviews-001 --to onnx
"$bin/whet" serve runs/reviews-001 --port 0 > serve.out & server=$!
for _ in $(seq 120); do grep -q http serve.out && break; sleep 0.5; done
address=$(grep -o 'http://[0-9.:]*' serve.out | head -1)
curl --silent --fail --retry 20 --retry-delay 1 --retry-all-errors "$address/predict" \
  -H 'Content-Type: application/json' -d '{"inputs": ["Works like a charm."]}'
echo
kill -TERM "$server"; wait "$server"
"$bin/python" - <<'PYTHON'
import whet

print(whet.load("runs/reviews-001").predict("Works like a charm."))
PYTHON
echo "The installed wheel does what the README says."
