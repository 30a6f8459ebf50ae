"""Redaction of command lines: secrets behind option names and at the places where programs take passwords."""

import pytest

from aaco_pipeline.formats.parsing.redaction import REDACTED, redacted_pieces, safe_command
from aaco_pipeline.formats.parsing.redaction.commands import LOG_IN, LONGEST_COMMAND, PROGRAMS, safe_words


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        ("python serve.py  --batch 4", "python serve.py  --batch 4"),
        ("serve --api-key hunter2 --port 80", f"serve --api-key {REDACTED} --port 80"),
        ("serve --hf-token=hunter2", f"serve --hf-token={REDACTED}"),
        ("curl https://me:pw@host/x", f"curl https://{REDACTED}@host/x"),
        ("docker run -e A_TOKEN=hunter2 -e B=1", f"docker run -e A_TOKEN={REDACTED} -e B=1"),
        ("sh -c 'mysql -phunter2 db'", f"sh -c 'mysql -p{REDACTED} db'"),
        (["sh", "-c", "x"], "sh -c x"),
        (["serve", "--api-key", "hunter2"], f"serve --api-key {REDACTED}"),
    ],
)
def test_a_command_line_is_kept_without_its_secrets(command: str | list[str], kept: str) -> None:
    assert safe_command(command) == kept


def test_words_stay_words() -> None:
    assert safe_words(["app", "--password", "a b", "--n", "1"]) == ["app", "--password", REDACTED, "--n", "1"]


def test_a_line_without_end_is_cut() -> None:
    assert len(safe_command("x" * (LONGEST_COMMAND + 10))) < LONGEST_COMMAND + 10


#: `{}` is a password. None of those tried looks like one.
HIDDEN = """
mysql -p{} db
mysql -uroot -P 3306 -p{}
mysqldump -u root -h db -p{} shop
mariadb -Bsp{} -e 'select 1'
mysqladmin -p {} ping
sshpass -p {} ssh -p 22 host
sshpass -vp{} scp -P 22 a host:
mongo -u me -p {} db
mongosh --host h -p {}
redis-cli -h h -p 6379 -a {} ping
redis-cli --pass {} ping
curl -u me:{} https://x
curl -sSu me:{} https://x
curl -ume:{} https://x
curl -U me:{} -x proxy https://x
curl --user me:{} https://x
curl --user=me:{} https://x
curl --oauth2-bearer {} https://x
wget --password={} --user=me http://x
wget --http-password {} http://x
docker login -u me -p {} registry:5000
podman login -p {} registry
helm registry login -u me -p {} host
az acr login -n me -p {}
smbclient -U me%{} //host/share
smbclient -NUme%{} //host/share
rpcclient --user=me%{} host
ldapsearch -x -D cn=me -w {} -b dc=x
ldapsearch -LLLxw {} -b dc=x
ldappasswd -D cn=me -a {} -s new uid=x
htpasswd -b .htpasswd me {}
htpasswd -Bbn me {}
openssl enc -aes-256-cbc -pass pass:{} -in a
openssl rsa -passin pass:{} -in key
openssl enc -k {} -in a
openssl passwd -6 {}
zip -P {} a.zip b
zip -rP {} a.zip b
unzip -qP {} a.zip
unzip -P{} a.zip
7z x -p{} a.7z
7za a a.7z -p{} b
rar a -hp{} a.rar b
sqlcmd -S host -U sa -P {} -Q 'select 1'
bcp db.dbo.t out f -S h -U sa -P{}
mosquitto_pub -h h -p 1883 -u me -P {} -t a -m b
mosquitto_sub --pw {} -t a
rabbitmqctl add_user me {}
rabbitmqctl --node a@b change_password me {}
rabbitmqadmin -u me -p {} list queues
snmpwalk -v3 -u me -a SHA -A {} -x AES -X other host
snmpget -v2c -c {} host sysUpTime.0
ipmitool -I lanplus -H host -U me -P {} power status
ipmipower -h host -u me -p {} --stat
ssh-keygen -t ed25519 -N {} -f key
ssh-keygen -p -P {} -N other -f key
kadmin -p me/admin -w {} -q listprincs
plink -P 22 -pw {} me@host
pdftotext -upw {} a.pdf
dig -y hmac-sha256:name:{} host
lftp -u me,{} sftp://host
xfreerdp /u:me /p:{} /v:host
rdesktop -u me -p {} host
cqlsh host -u me -p {}
beeline -n me -p {} -u jdbc:hive2://h
twine upload -u me -p {} dist/a.whl
useradd -p {} me
slappasswd -s {}
rclone obscure {}
wpa_passphrase ssid {}
radtest me {} host 0 other
aws configure set aws_secret_access_key {}Ab1+Ab1+Ab1+
sudo -u mysql mysql -p{} db
env A=1 nohup /usr/bin/mysql -p{} db
sh -c "mysql -p{} db"
bash -lc 'cd /tmp && zip -P {} a.zip b'
docker exec -it db mysql -uroot -p{} db
ls -p && mysql -p{} db
kubectl exec pod -- redis-cli -a {} ping
""".strip().splitlines()

KEPT = """
psql -h db -p 5432 -U me shop
pg_dump -p 5432 shop
app -p 8080
ssh -p 22 host
docker run -p 80:80 image
docker run --name mysql -p 3306:3306 -d image
docker run -u 1000:1000 -p 8080 image
make -p
mkdir -p /a/b
python -p
scp -P 22 a host:
redis-cli -h h -p 6379 ping
mysql -P 3306 db
mongod --port 27017
mosquitto_pub -p 1883 -t a
ssh -A -X host
grep -A 3 -c word file
unzip -p a.zip b
zip -r a.zip b
7z x -p a.7z
curl -u me https://x
curl -X POST -A agent https://x
mysql -e 'select 1' db | head -p 3
sshpass -f file ssh -p 2222 host
htpasswd -c .htpasswd me
rabbitmqctl list_users name
wget -P folder http://x
snmpwalk -v3 -a SHA -x AES host
""".strip().splitlines()


@pytest.mark.parametrize("line", HIDDEN)
@pytest.mark.parametrize("password", ["12345678", "sesame"])
def test_a_password_is_hidden_by_its_place_alone_and_nothing_beside_it(line: str, password: str) -> None:
    shown = safe_command(line.format(password))
    assert password not in shown
    assert REDACTED in shown
    words, kept = line.split(), shown.split()
    assert len(words) == len(kept)
    programs = [word for word in words if word.rpartition("/")[2] in {*PROGRAMS, *LOG_IN}]
    assert all(program in kept for program in programs)


@pytest.mark.parametrize("line", KEPT)
def test_what_is_no_password_of_its_program_stays(line: str) -> None:
    assert safe_command(line) == line


@pytest.mark.parametrize("line", HIDDEN)
def test_it_is_hidden_in_a_file_of_text_too(line: str) -> None:
    secret, others = line.format("hunter2xQ9").encode(), b"nothing here\n" * 4_000
    cleaned = b"".join(clean for clean, _ in redacted_pieces([others + secret + b"\n" + others]))
    assert b"hunter2xQ9" not in cleaned
    assert cleaned.startswith(others)
    assert cleaned.endswith(others)


def test_a_variable_in_the_place_of_a_password_stays() -> None:
    for line in ("mysql -p $PASSWORD db", "sshpass -p ${PASSWORD} ssh host"):
        assert safe_command(line) == line
