// Empty: headers are precompiled only for a target with a source.
