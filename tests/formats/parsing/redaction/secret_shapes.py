"""Real shapes of secrets on command lines, each with a secret made up anew from a seed: no file holds a token."""

import base64
import random
import string

LETTERS = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


def shapes(seed: int) -> list[tuple[str, str]]:
    """Lines with one `{}` each, and the secret that belongs there."""
    source = random.Random(seed)

    def some(length: int, letters: str = LETTERS) -> str:
        middle = "".join(source.choice(letters) for _ in range(length - 4))
        ends = "a7" if letters == HEX else "7A" if letters == UPPER else "Qz7x"
        return (ends + middle + ends[::-1])[:length].ljust(length, ends[0])

    def word() -> str:
        return source.choice(("hunter", "Tr0ub4dor", "correct", "s3same")) + str(source.randrange(10, 99))

    def basic() -> str:
        return base64.b64encode(f"user:{word()}".encode()).decode()

    def block(kind: str, end: str) -> str:
        return f"-----BEGIN {kind}PRIVATE KEY-----{end}{some(64)}{end}{some(64)}{end}-----END {kind}PRIVATE KEY-----"

    jwt = f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.{some(43)}"
    return [
        # options, with and without `=`
        *((f"serve {option} {{}} --port 1", word()) for option in _OPTIONS),
        *((f"serve {option}={{}} --port 1", word()) for option in _OPTIONS),
        ("app -p {}", word()),
        ("mysql -u root -p{}", word()),
        ("mysql -u root -p {}", "abcdefgh"),
        ("mysqldump --password={} db", word()),
        ("sh -c 'mysql -u root -p{}'", word()),
        ("sshpass -p {} ssh host", word()),
        ("sshpass -p{} ssh host", word()),
        ("docker login -u me -p {}", word()),
        ("docker login -u me --password {} registry", word()),
        ("echo {} | docker login --password-stdin", word()),
        ("redis-cli -a {} ping", word()),
        ("ldapsearch -D cn=x -w {}", word()),
        ("mongosh -u a -p {} x", word()),
        ("zip -P {} a.zip f", word()),
        ("openssl rsa -passin pass:{}", word()),
        ("smbclient -U 'user%{}' //host", word()),
        ("http -a user:{} x", word()),
        ("curl -u alice:{} https://x", "opensesame"),
        ("curl --user alice:{} https://x", word()),
        ("wandb login {}", some(40, HEX)),
        ("vault login {}", "hvs." + some(24)),
        ("aws configure set aws_secret_access_key {}", some(40)),
        ("npm config set //registry.npmjs.org/:_authToken={}", some(36)),
        ("kubectl create secret generic f --from-literal=password={}", word()),
        ("kubectl --token {} get pods", some(30)),
        ("app --otp {}", "123456"),
        ("app -Ddb.password={} x", word()),
        # variables
        ("docker run -e DB_PASSWORD={} img", word()),
        ("docker run -e 'SECRET_KEY={}' img", word()),
        ("docker run --env=API_TOKEN={} img", word()),
        ("AWS_SECRET_ACCESS_KEY={} aws s3 ls", some(40)),
        ("WANDB_API_KEY={} python t.py", some(40, HEX)),
        ("TWILIO_AUTH_TOKEN={} x", some(32, HEX)),
        ("PGPASSWORD={} psql", word()),
        ("env GITHUB_TOKEN={} x", word()),
        ("export API_KEY={}; run", word()),
        # headers and cookies
        ("curl -H 'Authorization: Bearer {}' https://x", some(32)),
        ('curl -H "Authorization: Basic {}" x', basic()),
        ("curl -H 'X-Api-Key: {}' x", some(20)),
        ("curl -H 'PRIVATE-TOKEN: {}' x", some(20)),
        ("curl -H 'Cookie: sid={}; a=b' x", some(20)),
        ("curl --cookie 'session={}' x", some(20)),
        ("curl -b 'sid={}' x", some(20)),
        ("sh -c \"curl -H 'Authorization: Bearer {}'\"", some(30)),
        # addresses and connection strings
        ("psql postgres://user:{}@db/x", "password"),
        ("redis-cli -u redis://:{}@h:6379", word()),
        ("git clone https://user:{}@github.com/x/y", "ghtoken"),
        ("git clone https://{}@github.com/x/y", some(40)),
        ("app --db-url mysql://root:{}@localhost:3306/d", "p@ss1"),
        ("app --dsn=https://{}@o0.ingest.example.io/0", some(32, HEX)),
        ("app 'Server=tcp:x;User ID=a;Password={};'", word()),
        ("app 'AccountName=a;AccountKey={};EndpointSuffix=core'", some(86) + "=="),
        ("app 'Endpoint=sb://x;SharedAccessKey={}'", some(43) + "="),
        ("curl https://h/x?token={}&a=1", some(20)),
        ("curl 'https://h/x?a=1&api_key={}'", word()),
        ("wget 'https://s3/x?X-Amz-Credential=q&X-Amz-Signature={}'", some(64, HEX)),
        ("curl 'https://b.blob.core.windows.net/c?sv=2020&sig={}'", some(40) + "%3D"),
        ("app --webhook https://hooks.slack.com/services/{}", f"T0{some(8)}/B0{some(8)}/{some(24)}"),
        # tokens that say what they are
        *((f"x --k {beginning}{{}}", some(length, letters)) for beginning, length, letters in _TOKENS),
        ("x SG.{}", some(22) + "." + some(43)),
        ("x xoxb-{}", some(12, "0123456789") + "-" + some(24)),
        ("x {}", jwt),
        ("kubectl --token={} get", jwt),
        ("app {}", some(40)),
        # key blocks, and secrets in JSON, SQL and programs
        ("app --private-key '{}'", block("RSA ", "\n")),
        ("app '{}'", block("OPENSSH ", "\\n")),
        ('app --account \'{{"type": "service_account", "private_key": "{}"}}\'', block("", "\\n")),
        ('app --config \'{{"api_key": "{}"}}\'', word()),
        ('app --config {{"apiKey":"{}"}}', word()),
        ('app --config "{{\\"password\\": \\"{}\\"}}"', word()),
        ('app \'{{"auths": {{"r": {{"auth": "{}"}}}}}}\'', basic()),
        ('app \'[{{"name": "DB_PASSWORD", "value": "{}"}}]\'', word()),
        ("python -c 'import x; x.login(token=\"{}\")'", word()),
        ("mysql \"CREATE USER a IDENTIFIED BY '{}'\"", word()),
        ("app 'machine h login me password {}'", word()),
        ("app --passphrase '{}'", "correct horse battery"),
    ]


_OPTIONS = (
    *("--api-key", "--apikey", "--api_key", "--token", "--hf-token", "--auth-token", "--access-token", "--password"),
    *("--passwd", "--pwd", "--secret", "--client-secret", "--access-key", "--secret-key", "--db-pass-phrase"),
    *("--credential", "--signing-key", "--bearer-token"),
)
_TOKENS = (
    *((f"gh{kind}_", 36, LETTERS) for kind in "pousr"),
    ("github_pat_", 82, LETTERS),
    ("glpat-", 20, LETTERS),
    ("hf_", 34, LETTERS),
    ("sk-", 48, LETTERS),
    ("sk-proj-", 100, LETTERS),
    ("sk-ant-api03-", 93, LETTERS),
    ("sk_" + "live_", 24, LETTERS),
    ("npm_", 36, LETTERS),
    ("pypi-AgEIcHlwaS5vcmc", 80, LETTERS),
    ("dapi", 32, HEX),
    ("SK", 32, HEX),
    ("AKIA", 16, UPPER),
    ("ASIA", 16, UPPER),
    ("AIza", 35, LETTERS),
    ("ya29.", 60, LETTERS),
    ("GOCSPX-", 28, LETTERS),
    ("dckr_pat_", 27, LETTERS),
    ("gsk_", 50, LETTERS),
    ("nvapi-", 60, LETTERS),
    ("r8_", 37, LETTERS),
)
