#!/usr/bin/env bash
echo todo >&2; exit 1
