#!/bin/sh
# Makes the certificates of the TLS tests anew, with the openssl command. They are good for a hundred years, and the
# keys protect nothing: they are committed so that the tests need no other tool.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$work/$1.key"; }

key root
openssl req -x509 -new -key "$work/root.key" -sha256 -days 36500 -subj "/CN=svir test root" -out root.pem \
  -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign"

: > "$work/index.txt"
cat > "$work/ca.cnf" << EOF
[ca]
default_ca = root
[root]
database = $work/index.txt
new_certs_dir = $work
rand_serial = yes
default_md = sha256
policy = policy
unique_subject = no
[policy]
commonName = supplied
EOF

# NAME NAMES-IN-THE-CERTIFICATE FROM TO: signs with the root; the certificate and its key go into one file.
sign() {
  key "$1"
  openssl req -new -key "$work/$1.key" -subj "/CN=$1" -out "$work/$1.csr"
  printf '%s\n' "basicConstraints=critical,CA:FALSE" "keyUsage=critical,digitalSignature" \
    "extendedKeyUsage=serverAuth" "subjectAltName=$2" "subjectKeyIdentifier=hash" "authorityKeyIdentifier=keyid" \
    > "$work/$1.ext"
  openssl ca -batch -notext -config "$work/ca.cnf" -cert root.pem -keyfile "$work/root.key" -in "$work/$1.csr" \
    -extfile "$work/$1.ext" -startdate "$3" -enddate "$4" -out "$work/$1.crt" 2> "$work/log" || cat "$work/log" >&2
  cat "$work/$1.crt" "$work/$1.key" > "$1.pem"
}

sign localhost "DNS:localhost,IP:127.0.0.1,IP:::1" 20260101000000Z 21260101000000Z
sign elsewhere "DNS:elsewhere.example" 20260101000000Z 21260101000000Z
sign expired "DNS:localhost,IP:127.0.0.1,IP:::1" 20200101000000Z 20200102000000Z

# Clients have a root of their own: client.pem is a certificate and key that it signed, clients.pem is what a server trusts.
key clients
openssl req -x509 -new -key "$work/clients.key" -sha256 -days 36500 -subj "/CN=svir test clients" -out clients.pem \
  -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign"
key client
openssl req -new -key "$work/client.key" -subj "/CN=a known client" -out "$work/client.csr"
printf '%s\n' "basicConstraints=critical,CA:FALSE" "keyUsage=critical,digitalSignature" "extendedKeyUsage=clientAuth" \
  > "$work/client.ext"
openssl x509 -req -in "$work/client.csr" -CA clients.pem -CAkey "$work/clients.key" -set_serial 1 -sha256 -days 36500 \
  -extfile "$work/client.ext" -out "$work/client.crt" 2> "$work/log" || cat "$work/log" >&2
cat "$work/client.crt" "$work/client.key" > client.pem
