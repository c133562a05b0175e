#!/bin/sh
# The claim `model` of the language-model recipes, where no checksum says what it is (provider `command`).
#
# With the parameter `folder`: that folder, read where it is; every host must see it under that path.
# With `make`: what that module makes, by `python -m MAKE FOLDER` with the interpreter of the parameter `python`. It is made once
# for all groups of the controller's user, in ~/.cache/gangflow/models, under the parameter `key`.
set -eu

whole() { [ -f "$1/config.json" ]; }

case "$1" in
provision)
    if [ -n "${XCE_CLAIM_PARAMETER_FOLDER:-}" ]; then
        where=$XCE_CLAIM_PARAMETER_FOLDER
        whole "$where" || { echo "no model folder: $where/config.json does not exist" >&2; exit 1; }
        echo "$where"
        exit 0
    fi
    cache=$HOME/.cache/gangflow/models
    where=$cache/$XCE_CLAIM_PARAMETER_KEY
    if ! whole "$where"; then
        mkdir -p "$cache"
        find "$cache" -maxdepth 1 -name '.making-*' -mmin +60 -exec rm -rf {} +
        made=$(mktemp -d "$cache/.making-XXXXXXXX")
        trap 'rm -rf "$made"' EXIT
        trap 'exit 1' TERM INT
        chmod 755 "$made"
        OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$XCE_CLAIM_PARAMETER_PYTHON" -m "$XCE_CLAIM_PARAMETER_MAKE" "$made" >&2
        whole "$made" || { echo "$XCE_CLAIM_PARAMETER_MAKE made no model folder" >&2; exit 1; }
        # Whoever made it at the same time made the same: the first one stays.
        mv -T "$made" "$where" 2>/dev/null || whole "$where"
    fi
    echo "$where"
    ;;
release)
    ;; # a folder of others, or a cache: neither is this claim's to remove
check)
    whole "$XCE_CLAIM_PATH" || { echo "$XCE_CLAIM_PATH/config.json is gone" >&2; exit 3; }
    ;;
*)
    exit 64
    ;;
esac
