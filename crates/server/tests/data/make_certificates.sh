#!/bin/sh
# Makes the certificates of the TLS tests: self-signed, for localhost, good for a hundred years.
# They protect nothing. Needs OpenSSL 3.
set -eu
cd "$(dirname "$0")"
for name in first second; do
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 36500 \
        -keyout "$name.key.pem" -out "$name.cert.pem" -subj "/CN=mini-infer test $name" \
        -addext "basicConstraints=critical,CA:FALSE" \
        -addext "subjectAltName=DNS:localhost,IP:127.0.0.1"
done
