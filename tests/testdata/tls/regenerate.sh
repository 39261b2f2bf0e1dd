#!/bin/sh
# Makes the certificates of the tests anew, valid from 2020 for 150 years. They protect nothing: the keys are public with the repository.
set -eu
cd "$(dirname "$0")"
rm -f ./*.pem
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$work/index.txt"
cat >"$work/ca.cnf" <<END
[ca]
default_ca=authority
[authority]
database=$work/index.txt
new_certs_dir=$work
rand_serial=yes
unique_subject=no
default_md=sha256
default_startdate=20200101000000Z
default_enddate=21700101000000Z
default_crl_days=40000
policy=any
[any]
commonName=supplied
END

issue() { # issue NAME COMMON-NAME EXTENSIONS [OPTION...]
    name=$1 subject=$2 extensions=$3
    shift 3
    printf '%s\n' "$extensions" >"$work/$name.ext"
    openssl req -newkey rsa:2048 -nodes -subj "/CN=$subject" -keyout "$name-key.pem" -out "$work/$name.csr"
    openssl ca -batch -notext -config "$work/ca.cnf" -extfile "$work/$name.ext" -in "$work/$name.csr" -out "$name.pem" "$@"
}

authority="basicConstraints=critical,CA:true
keyUsage=critical,keyCertSign,cRLSign
subjectKeyIdentifier=hash"
issue ca "holdfast tests CA" "$authority" -selfsign -keyfile ca-key.pem
issue stranger "another CA" "$authority" -selfsign -keyfile stranger-key.pem
issue server "localhost" "subjectAltName=DNS:localhost,IP:127.0.0.1" -cert ca.pem -keyfile ca-key.pem
issue misnamed "elsewhere" "subjectAltName=DNS:elsewhere.example" -cert ca.pem -keyfile ca-key.pem
issue client "holdfast-client" "extendedKeyUsage=clientAuth" -cert ca.pem -keyfile ca-key.pem
openssl pkcs8 -topk8 -in client-key.pem -passout pass:open-sesame -out client-key-encrypted.pem
cat server.pem server-key.pem >server-keystore.pem
openssl ca -config "$work/ca.cnf" -keyfile ca-key.pem -cert ca.pem -revoke server.pem
openssl ca -config "$work/ca.cnf" -keyfile ca-key.pem -cert ca.pem -gencrl -crl_lastupdate 20200101000000Z -crl_nextupdate 21700101000000Z -out revoked.pem
rm ca-key.pem stranger-key.pem
