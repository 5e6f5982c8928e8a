#!/bin/sh
# Makes the certificates of this folder anew: see README.md.
set -eu
CDPATH='' cd -- "$(dirname -- "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/settings" <<END
[ca]
default_ca = here
[here]
database = $work/index
new_certs_dir = $work
rand_serial = yes
unique_subject = no
default_md = sha256
policy = any
x509_extensions = node
[any]
commonName = supplied
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[node]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
END
: >"$work/index"

key() { openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }
signed() {  # name of the certificate, its key, from, until, what else openssl ca is told
    name=$1 key=$2 from=$3 until=$4
    shift 4
    openssl req -new -config "$work/settings" -subj "/CN=d2lps test $name" -key "$key" -out "$work/request"
    openssl ca -batch -notext -config "$work/settings" -startdate "$from" -enddate "$until" -in "$work/request" \
        -out "$name.pem" "$@" 2>/dev/null
}
long='20000101000000Z 29991231235959Z'

for of in '' other-; do
    key "$work/${of}authority.key"
    signed "${of}authority" "$work/${of}authority.key" $long -selfsign -extensions authority \
        -keyfile "$work/${of}authority.key"
done
key node.key
key other.key
signed node node.key $long -cert authority.pem -keyfile "$work/authority.key"
signed expired node.key 20000101000000Z 20010101000000Z -cert authority.pem -keyfile "$work/authority.key"
signed other other.key $long -cert other-authority.pem -keyfile "$work/other-authority.key"
openssl pkey -in node.key -aes256 -passout pass:d2lps -out locked.key
