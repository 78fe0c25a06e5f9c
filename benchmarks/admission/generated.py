"""Outputs of the admission exam that are generated: same text on every machine."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Callable
from datetime import datetime, timedelta

_START = datetime(2026, 3, 14, 7, 59, 30)


def _times(seed: int, count: int, seconds: int) -> list[datetime]:
    dice, at, out = random.Random(seed), _START, list[datetime]()
    for _ in range(count):
        at += timedelta(seconds=dice.randint(1, seconds), milliseconds=dice.randint(0, 999))
        out.append(at)
    return out


def csv_shipments() -> str:
    """A CSV file: one shipment is far heavier than all others, one has another currency, one day is missing."""
    dice = random.Random(11)
    rows = ["shipment,day,carrier,weight_kg,price,currency,destination"]
    for number in range(900):
        day = (_START + timedelta(hours=3 * number)).date()
        carrier = dice.choice(["DHL", "UPS", "GLS", "DPD"])
        weight = 18_450.0 if number == 512 else round(dice.uniform(0.4, 31.5), 2)
        currency = "CHF" if number == 377 else "EUR"
        city = dice.choice(["Berlin", "Wien", "Genf", "Lille", "Turin", "Aarhus", "Brno"])
        if day.isoformat() != "2026-05-02":
            rows.append(f"S{40_000 + number},{day},{carrier},{weight},{dice.uniform(3, 60):.2f},{currency},{city}")
    return "\n".join(rows)


def kubectl_pods() -> str:
    """Pods of all namespaces, as `kubectl get pods -A -o wide` prints them."""
    dice = random.Random(12)
    apps = ["api", "worker", "billing", "search", "mailer", "frontend", "ledger", "auth", "imports", "reports"]
    rows = [("NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE")]
    for number in range(190):
        app = apps[number % len(apps)]
        name = f"{app}-{dice.getrandbits(36):x}-{dice.choice('bcdfghjk')}{dice.randint(1000, 9999)}"
        ready, status, restarts = "1/1", "Running", str(dice.choice([0, 0, 0, 0, 1]))
        if number == 77:
            ready, status, restarts = "0/1", "CrashLoopBackOff", "143 (2m ago)"
        if number == 131:
            ready, status = "0/1", "ImagePullBackOff"
        if number == 150:
            ready, restarts = "1/1", "58 (9h ago)"
        address = f"10.42.{number % 7}.{number + 10}"
        space = "default" if number % 3 else "staging"
        rows.append((space, name, ready, status, restarts, f"{dice.randint(1, 60)}d", address, f"node-{number % 7}"))
    widths = [max(len(row[column]) for row in rows) + 3 for column in range(8)]
    return "\n".join("".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def german_log() -> str:
    """A service log in German."""
    dice = random.Random(13)
    lines: list[str] = []
    for number, at in enumerate(_times(13, 420, 20)):
        stamp = at.strftime("%d.%m.%Y %H:%M:%S")
        order = dice.randint(100_000, 999_999)
        text = dice.choice(
            [
                f"Auftrag {order} angenommen, Kunde {dice.randint(1000, 9999)}",
                f"Zahlung für Auftrag {order} bestätigt ({dice.randint(5, 900)},{dice.randint(10, 99)} EUR)",
                f"Lagerbestand für Artikel A-{dice.randint(10, 99)} aktualisiert",
                f"Sitzung {dice.getrandbits(32):08x} abgelaufen",
            ]
        )
        level = "INFO "
        if number == 201:
            level, text = "HINWEIS", "Lagerbestand für Artikel A-17 ist negativ: -4"
        if number == 233:
            level, text = "SCHWER", "Verbindung zur Datenbank db-lager-02 abgebrochen: Zeitüberschreitung nach 30 s"
        if number == 234:
            level, text = "SCHWER", "Auftrag 558812 konnte nicht gespeichert werden und wird zurückgestellt"
        if number == 260:
            level, text = "INFO ", "Verbindung zur Datenbank db-lager-01 hergestellt (Ersatz für db-lager-02)"
        lines.append(f"{stamp} {level} [auftrag-{number % 4}] {text}")
    return "\n".join([*lines, "Tagesabschluss: 418 Vorgänge, 2 Störungen, 1 Hinweis"])


def japanese_log() -> str:
    """A batch log in Japanese."""
    dice = random.Random(14)
    lines: list[str] = []
    for number, at in enumerate(_times(14, 330, 9)):
        text = f"顧客 {dice.randint(10_000, 99_999)} の請求書を作成しました（{dice.randint(800, 90_000)}円）"
        level = "情報"
        if number % 40 == 7:
            text = f"キャッシュを更新しました: {dice.randint(100, 999)} 件"
        if number == 145:
            level, text = "警告", "ディスクの空き容量が少なくなっています: 残り 3%"
        if number == 188:
            level, text = "重大", "顧客 48213 の住所が登録されていないため請求書を作成できませんでした"
        if number == 189:
            level, text = "重大", "再試行の上限（5回）に達しました: 顧客 48213"
        lines.append(f"{at:%Y-%m-%d %H:%M:%S} [{level}] 請求バッチ: {text}")
    return "\n".join([*lines, "処理結果: 成功 320 件、未処理 1 件、所要時間 26分41秒"])


def chinese_log() -> str:
    """A deployment log in Chinese."""
    dice = random.Random(15)
    lines: list[str] = []
    for number, at in enumerate(_times(15, 300, 6)):
        text = f"正在同步文件 static/img/{dice.getrandbits(24):06x}.png，大小 {dice.randint(2, 900)} KB"
        if number == 12:
            text = "开始部署版本 v4.18.2 到 生产环境 (集群 hz-prod-3)"
        if number == 140:
            text = "无法连接到节点 10.8.3.21：连接被拒绝，跳过该节点"
        if number == 205:
            text = "数据库迁移 20260311_add_invoice_tax 已执行，影响 48213 行"
        if number == 297:
            text = "健康检查通过：17/18 个节点"
        lines.append(f"{at:%H:%M:%S.%f}"[:-3] + f" 部署 | {text}")
    return "\n".join([*lines, "部署完成，用时 14 分 52 秒"])


def json_accounts() -> str:
    """A JSON list of accounts: one has a nested limit of another order, one has another plan, one a later schema."""
    dice = random.Random(16)
    accounts: list[dict[str, object]] = []
    for number in range(140):
        used = dice.randint(100, 900)
        account: dict[str, object] = {
            "id": f"acc_{dice.getrandbits(40):010x}",
            "name": f"{dice.choice(['Nord', 'Sued', 'West', 'Ost'])}{dice.choice(['bau', 'druck', 'film'])} {number}",
            "plan": "team",
            "quota": {"limit_mb": 1000, "used_mb": used},
            "flags": {"two_factor": True, "beta": number % 5 == 0},
            "members": dice.randint(2, 40),
            "created": f"2025-{dice.randint(1, 12):02}-{dice.randint(1, 28):02}",
        }
        if number == 61:
            account["quota"] = {"limit_mb": 1000, "used_mb": 48_200}
        if number == 88:
            account["flags"] = {"two_factor": False, "beta": False}
        if number == 104:
            account["members"] = 2210
        accounts.append(account)
    return json.dumps({"total": 3120, "page": 4, "accounts": accounts, "next": "cursor_91ac"}, indent=2)


def json_lines() -> str:
    """Structured log lines: one slow request, two server errors, one unknown route."""
    dice = random.Random(17)
    lines: list[str] = []
    for number, at in enumerate(_times(17, 260, 4)):
        route = dice.choice(["/v1/orders", "/v1/items", "/v1/cart", "/healthz"])
        status, spent = 200, dice.randint(4, 90)
        record: dict[str, object] = {"ts": at.isoformat(timespec="milliseconds"), "level": "info", "msg": "request"}
        record |= {"route": route, "status": status, "ms": spent, "trace": f"{dice.getrandbits(64):016x}"}
        if number == 97:
            record |= {"route": "/v1/export", "ms": 28_411}
        if number in (131, 133):
            record |= {"level": "error", "status": 503, "msg": "upstream unavailable", "upstream": "tax-service:8443"}
        if number == 180:
            record |= {"route": "/.env", "status": 404, "client": "203.0.113.77"}
        lines.append(json.dumps(record))
    return "\n".join(lines)


def manifests_yaml() -> str:
    """Kubernetes manifests in YAML: ten deployments; one has another memory limit, one mounts a secret."""
    apps = ["api", "worker", "billing", "search", "mailer", "frontend", "ledger", "auth", "imports", "reports"]
    parts: list[str] = []
    for place, app in enumerate(apps):
        memory = "6Gi" if app == "search" else "512Mi"
        secret = "\n        - secretRef:\n            name: ledger-signing-key" if app == "ledger" else ""
        parts.append(
            f"""apiVersion: apps/v1
kind: Deployment
metadata:
  name: {app}
  namespace: shop
  labels:
    app: {app}
    team: {"payments" if app in ("billing", "ledger") else "platform"}
spec:
  replicas: {9 if app == "worker" else 2}
  selector:
    matchLabels:
      app: {app}
  template:
    metadata:
      labels:
        app: {app}
    spec:
      containers:
      - name: {app}
        image: registry.example/shop/{app}:{"2.9.0-rc1" if app == "auth" else "2.8.4"}
        ports:
        - containerPort: {8000 + place}
        envFrom:
        - configMapRef:
            name: shop-common{secret}
        resources:
          requests:
            cpu: 100m
            memory: 256Mi
          limits:
            cpu: "1"
            memory: {memory}
        readinessProbe:
          httpGet:
            path: /ready
            port: {8000 + place}
          periodSeconds: {30 if app == "imports" else 5}
---
apiVersion: v1
kind: Service
metadata:
  name: {app}
  namespace: shop
spec:
  selector:
    app: {app}
  ports:
  - port: 80
    targetPort: {8000 + place}
"""
        )
    return "---\n".join(parts)


def go_panic() -> str:
    """The dump of a Go program that stopped with a deadlock on a channel."""
    dice = random.Random(18)
    out = [
        "2026/03/14 08:01:12 ingest: reading topic orders-v3 from offset 88120344",
        "2026/03/14 08:01:13 ingest: 64 workers started",
        "panic: runtime error: index out of range [17] with length 17",
        "",
        "goroutine 71 [running]:",
        "shop.example/ingest/decode.(*Frame).Field(0xc0003f2a80, 0x11)",
        "\t/app/decode/frame.go:142 +0x1c4",
        "shop.example/ingest/decode.Order(0xc0003f2a80, {0xc00011e000, 0x2c0, 0x400})",
        "\t/app/decode/order.go:88 +0x3a5",
        "shop.example/ingest/worker.(*Worker).handle(0xc00024c000, 0x5409a98)",
        "\t/app/worker/worker.go:203 +0x97",
        "created by shop.example/ingest/worker.Start in goroutine 1",
        "\t/app/worker/worker.go:61 +0x155",
        "",
    ]
    for number in range(64):
        wait = dice.choice(["chan receive", "select", "chan receive, 3 minutes", "IO wait"])
        if number == 40:
            wait = "semacquire, 11 minutes"
        out.append(f"goroutine {80 + number} [{wait}]:")
        if number == 40:
            out += ["sync.runtime_SemacquireMutex(0xc0001b8024?, 0x0?, 0x1?)", "\t/usr/go/src/runtime/sema.go:77 +0x25"]
            out += ["shop.example/ingest/offsets.(*Book).Commit(0xc0001b8000)", "\t/app/offsets/book.go:57 +0x4d"]
        else:
            out += [f"shop.example/ingest/worker.(*Worker).loop(0xc000{dice.getrandbits(24):06x})"]
            out += [f"\t/app/worker/worker.go:{dice.choice([171, 176, 188])} +0x{dice.getrandbits(8):x}"]
        out += ["created by shop.example/ingest/worker.Start in goroutine 1", "\t/app/worker/worker.go:61 +0x155", ""]
    return "\n".join([*out, "exit status 2"])


def http_response() -> str:
    """What `curl -v` prints: handshake, headers, and a JSON body on one line."""
    dice = random.Random(19)
    items = [
        {
            "sku": f"SKU-{dice.randint(10_000, 99_999)}",
            "title": f"{dice.choice(['Lampe', 'Tisch', 'Regal', 'Stuhl'])} Modell {number}",
            "stock": -3 if number == 71 else dice.randint(0, 400),
            "price": {"amount": dice.randint(5, 900) * 100, "currency": "EUR"},
            "tags": dice.sample(["holz", "metall", "neu", "b-ware", "set"], 2),
        }
        for number in range(120)
    ]
    body = json.dumps({"items": items, "meta": {"total": 4381, "took_ms": 812, "next": "/v2/items?after=eyJwIjo1fQ"}})
    return "\n".join(
        [
            "*   Trying 198.51.100.20:443...",
            "* Connected to api.shop.example (198.51.100.20) port 443 (#0)",
            "* TLSv1.3 (IN), TLS handshake, Server hello (2):",
            "* SSL connection using TLSv1.3 / TLS_AES_256_GCM_SHA384",
            "*  subject: CN=*.shop.example",
            "*  expire date: Apr  2 23:59:59 2026 GMT",
            "> GET /v2/items?limit=120 HTTP/1.1",
            "> Host: api.shop.example",
            "> Accept: */*",
            "> ",
            "< HTTP/1.1 200 OK",
            "< Content-Type: application/json; charset=utf-8",
            f"< Content-Length: {len(body)}",
            "< X-RateLimit-Limit: 600",
            "< X-RateLimit-Remaining: 4",
            "< Retry-After: 37",
            "< Deprecation: true",
            "< Sunset: Wed, 01 Jul 2026 00:00:00 GMT",
            "< ",
            body,
            "* Connection #0 to host api.shop.example left intact",
        ]
    )


def progress_bars() -> str:
    """Downloads with bars that redraw one line, as installers print them into a log."""
    dice = random.Random(20)
    out: list[str] = []
    for number in range(30):
        size = dice.randint(40, 900)
        name = f"layer-{dice.getrandbits(48):012x}"
        steps: list[str] = []
        for percent in range(0, 101, 4):
            done = "█" * (percent // 4) + "░" * (25 - percent // 4)
            steps.append(f"{name}: {percent:3}% |{done}| {size * percent // 100}/{size} MB")
            if number == 17 and percent == 48:
                steps.append(f"{name}: connection reset by peer, resuming at byte {size * 480_000}")
        out.append("\r".join(steps))
        if number == 21:
            out.append(f"{name}: checksum differs (expected sha256:91f0c2, got sha256:07be4d); layer downloaded again")
    return "\n".join(
        [*out, "30 layers, 14.1 GB in 11m08s", "Image is up to date for registry.example/ml/train:2026.03"]
    )


def access_log() -> str:
    """The log of a web server: scans by one address, one failing route."""
    dice = random.Random(21)
    lines: list[str] = []
    for number, at in enumerate(_times(21, 340, 3)):
        address = f"192.0.2.{dice.randint(2, 90)}"
        path = dice.choice(["/", "/shop", "/shop/item/", "/static/app.css", "/api/cart", "/login"])
        path += str(dice.randint(1, 999)) if path.endswith("item/") else ""
        status, size = dice.choice([200, 200, 200, 304]), dice.randint(300, 40_000)
        if 150 <= number < 158:
            address, path, status = "198.51.100.9", f"/wp-admin/setup-{number}.php", 404
        if number == 222:
            path, status, size = "/api/checkout", 500, 87
        lines.append(
            f'{address} - - [{at:%d/%b/%Y:%H:%M:%S} +0000] "GET {path} HTTP/1.1" {status} {size} "-" "Mozilla/5.0"'
        )
    return "\n".join(lines)


def mail_source() -> str:
    """A mail with an attachment in base64, as an IMAP tool prints it."""
    blob = base64.b64encode(b"%PDF-1.7" + hashlib.shake_256(b"attachment").digest(16_000)).decode()
    wrapped = [blob[start : start + 76] for start in range(0, len(blob), 76)]
    return "\n".join(
        [
            "Return-Path: <billing@supplier.example>",
            "Received: from mx2.supplier.example (mx2.supplier.example [203.0.113.5])",
            "Date: Fri, 13 Mar 2026 16:20:01 +0100",
            "From: Billing <billing@supplier.example>",
            "To: accounts@shop.example",
            "Subject: Invoice 2026-0317 (third reminder)",
            "Message-ID: <20260313162001.88121@supplier.example>",
            'Content-Type: multipart/mixed; boundary="=_b41"',
            "",
            "--=_b41",
            "Content-Type: text/plain; charset=utf-8",
            "",
            "Dear customer,",
            "",
            "invoice 2026-0317 over 4,812.60 EUR was due on 20 February. Please pay by 27 March;",
            "afterwards we charge a fee of 40 EUR and stop deliveries of contract K-7731.",
            "",
            "--=_b41",
            'Content-Type: application/pdf; name="invoice-2026-0317.pdf"',
            "Content-Transfer-Encoding: base64",
            'Content-Disposition: attachment; filename="invoice-2026-0317.pdf"',
            "",
            *wrapped,
            "--=_b41--",
            "X-Spam-Score: 0.3",
        ]
    )


GENERATED: dict[str, Callable[[], str]] = {
    make.__name__: make
    for make in (
        csv_shipments,
        kubectl_pods,
        german_log,
        japanese_log,
        chinese_log,
        json_accounts,
        json_lines,
        manifests_yaml,
        go_panic,
        http_response,
        progress_bars,
        mail_source,
        access_log,
    )
}
"""The outputs by name."""
