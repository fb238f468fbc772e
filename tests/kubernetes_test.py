#!/usr/bin/env python3
"""Checks packaging/kubernetes: each manifest against the schemas of Kubernetes, the manifests
against each other, the configuration with a cleave-server that serves with it, and the command of
the job of a cohort's member with such a server. Needs the package kubernetes-validate:
scripts/test_kubernetes.sh."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "packaging/kubernetes"
MARGIN_SECONDS = 5  # the server exits within 1.5 s after limits.drain_seconds


KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
MEMBER = FOLDER / "member"
SERVERS = 2


def services():
    return subprocess.run([FOLDER / "services.sh", str(SERVERS)], check=True, capture_output=True, text=True).stdout


def manifests():
    texts = {name: (FOLDER / name).read_text() for name in KUSTOMIZATION["resources"]} | {"services.sh": services()}
    return [(name, manifest) for name, text in texts.items() for manifest in yaml.safe_load_all(text) if manifest]


class Kubernetes(unittest.TestCase):
    def setUp(self):
        self.by_name = {(manifest["kind"], manifest["metadata"]["name"]): manifest for _, manifest in manifests()}
        self.pod = self.by_name["StatefulSet", "cleave"]["spec"]["template"]
        self.server = self.pod["spec"]["containers"][0]
        self.config_text = self.by_name["ConfigMap", "cleave"]["data"]["server.yaml"]
        self.config = yaml.safe_load(self.config_text)

    def test_schemas(self):
        for name, manifest in manifests():
            with self.subTest(file=name, kind=manifest["kind"]):
                kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)

    def test_kustomization_has_all_manifests_and_images(self):
        self.assertEqual(set(KUSTOMIZATION["resources"]) | {"kustomization.yaml"}, {file.name for file in FOLDER.glob("*.yaml")})
        containers = self.pod["spec"]["initContainers"] + self.pod["spec"]["containers"]
        self.assertEqual({image["name"] for image in KUSTOMIZATION["images"]}, {container["image"] for container in containers})

    def test_each_server_has_a_service(self):
        pods = [manifest["spec"]["selector"].get("statefulset.kubernetes.io/pod-name") for manifest in self.by_name.values()
                if manifest["kind"] == "Service"]  # fmt: skip
        self.assertEqual(sorted(filter(None, pods)), [f"cleave-{i}" for i in range(SERVERS)])
        wrong = subprocess.run([FOLDER / "services.sh", "0"], capture_output=True, text=True)
        self.assertEqual((wrong.returncode, wrong.stdout), (2, ""))

    def test_selectors_match_the_pods(self):
        labels = self.pod["metadata"]["labels"].items()
        pod_name = "statefulset.kubernetes.io/pod-name"  # a label that Kubernetes adds to each pod
        for (kind, name), manifest in self.by_name.items():
            spec = manifest.get("spec", {})
            selector = spec.get("podSelector") or spec.get("selector") or {}
            selected = {label: value for label, value in selector.get("matchLabels", selector).items() if label != pod_name}
            with self.subTest(kind=kind, name=name):
                self.assertLessEqual(selected.items(), labels)
                self.assertTrue(selected or kind == "ConfigMap")
        self.assertIn(("Service", self.by_name["StatefulSet", "cleave"]["spec"]["serviceName"]), self.by_name)

    def test_ports_are_those_of_the_configuration(self):
        ports = {port["name"]: port["containerPort"] for port in self.server["ports"]}
        self.assertEqual(ports["cleave"], self.config["listen"]["port"])
        self.assertEqual(str(ports["metrics"]), self.config["metrics"]["listen"].rpartition(":")[2])
        self.assertEqual(self.pod["metadata"]["annotations"]["prometheus.io/port"], str(ports["metrics"]))
        for (kind, name), manifest in self.by_name.items():
            for port in manifest["spec"]["ports"] if kind == "Service" else []:
                self.assertEqual(port["port"], ports[port["targetPort"]], name)

    def test_paths_are_mounted(self):
        mounted = {mount["mountPath"] for mount in self.server["volumeMounts"]}
        for path in (self.config["tls"]["folder"], self.config["store"], str(pathlib.Path(self.config["access"]["file"]).parent)):
            self.assertIn(path, mounted)
        self.assertIn(pathlib.Path(self.config["access"]["file"]).name, self.by_name["ConfigMap", "cleave"]["data"])
        volumes = {volume["name"] for volume in self.pod["spec"]["volumes"]} | {
            claim["metadata"]["name"] for claim in self.by_name["StatefulSet", "cleave"]["spec"]["volumeClaimTemplates"]}  # fmt: skip
        for container in self.pod["spec"]["initContainers"] + self.pod["spec"]["containers"]:
            self.assertLessEqual({mount["name"] for mount in container["volumeMounts"]}, volumes)

    def test_the_server_has_time_to_drain(self):
        drain = self.config["limits"]["drain_seconds"]
        self.assertGreaterEqual(self.pod["spec"]["terminationGracePeriodSeconds"], drain + MARGIN_SECONDS)

    def test_containers_have_no_privileges(self):
        self.assertTrue(self.pod["spec"]["securityContext"]["runAsNonRoot"])
        self.assertFalse(self.pod["spec"]["automountServiceAccountToken"])
        for container in self.pod["spec"]["initContainers"] + self.pod["spec"]["containers"]:
            context = container["securityContext"]
            self.assertTrue(context["readOnlyRootFilesystem"])
            self.assertFalse(context["allowPrivilegeEscalation"])
            self.assertEqual(context["capabilities"]["drop"], ["ALL"])

    def start(self, folder):
        """A server with the ConfigMap's configuration, on other addresses and folders."""
        programs = pathlib.Path(os.environ["PROGRAMS"])
        (folder / "config").mkdir()
        for name, text in self.by_name["ConfigMap", "cleave"]["data"].items():
            (folder / "config" / name).write_text(text)
        subprocess.run([programs / "cleave-server", "certs", "init", "--folder", folder / "certs"], check=True, stdout=subprocess.DEVNULL)
        settings = {"listen.address": "127.0.0.1", "listen.port": 0, "tls.folder": folder / "certs", "store": folder / "store",
                    "access.file": folder / "config/access.yaml", "status.socket": folder / "status/socket", "metrics.listen": "127.0.0.1:0"}  # fmt: skip
        overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        return subprocess.Popen([programs / "cleave-server", "serve", "--config", folder / "config/server.yaml", *overrides],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip

    def test_the_server_accepts_the_configuration_and_needs_no_more_memory_than_the_limit(self):
        with tempfile.TemporaryDirectory() as folder, self.start(pathlib.Path(folder)) as server:
            line = server.stdout.readline()
            server.terminate()
            _, log = server.communicate(timeout=60)
            self.assertIn("cleave-server listens on", line, log)
            self.assertEqual(server.returncode, 0, log)
        needed = int(re.search(r"(\d+) MiB of memory at most", log)[1])
        limit = self.server["resources"]["limits"]["memory"]
        self.assertRegex(limit, r"^\d+Gi$")
        self.assertLessEqual(needed, 1024 * int(limit.removesuffix("Gi")))

    def wait_for_reload(self, server):
        for line in server.stderr:
            if "reloaded the certificates" in json.loads(line)["message"]:
                return
        self.fail("the server ended")

    def test_renewed_certificates_are_copied_and_loaded_without_a_restart(self):
        with tempfile.TemporaryDirectory() as name, self.start(pathlib.Path(name)) as server:
            folder = pathlib.Path(name)
            secrets, certs = folder / "secrets", folder / "certs"
            self.assertIn("cleave-server listens on", server.stdout.readline())
            shutil.copytree(certs, secrets)
            script = [ROOT / "docker/certificates.sh", secrets, certs]
            subprocess.run(script, check=True)  # as the init container
            with subprocess.Popen([*script, folder / "config/server.yaml"], env=os.environ | {"PERIOD": "0.2"}) as watcher:
                self.wait_for_reload(server)  # at its first look
                renewed = subprocess.run([pathlib.Path(os.environ["PROGRAMS"]) / "cleave-server", "certs", "init", "--renew",
                                          "--folder", secrets], check=True, capture_output=True)  # fmt: skip
                self.assertTrue(renewed.stdout)
                self.wait_for_reload(server)
                watcher.terminate()
            server.terminate()
            server.communicate(timeout=60)
            self.assertEqual(server.returncode, 0)
            for file in ("server.crt", "server.key"):
                self.assertEqual((certs / file).read_bytes(), (secrets / file).read_bytes())
                self.assertEqual((certs / file).stat().st_mode & 0o777, 0o600)

    def test_what_changed_while_the_container_did_not_run_is_copied_and_a_failed_copy_is_tried_again(self):
        names = ("ca.crt", "server.crt", "server.key", "revoked.crl")
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            secrets, certs = folder / "secrets", folder / "certs"
            for each in (secrets, certs):
                each.mkdir()
            for file in names:
                (certs / file).write_text("old")
            for file in names[1:]:
                (secrets / file).write_text("new")
            script = [ROOT / "docker/certificates.sh", secrets, certs, folder / "server.yaml"]  # without access.yaml
            with subprocess.Popen(script, env=os.environ | {"PERIOD": "0.1"}, stderr=subprocess.PIPE, text=True) as watcher:
                try:
                    while "the certificates are not copied" not in (line := watcher.stderr.readline()):
                        self.assertTrue(line, "the script ended")
                    self.assertEqual((certs / "server.key").read_text(), "old")
                    (secrets / "ca.crt").write_text("new")
                    deadline = time.monotonic() + 60
                    while {(certs / file).read_text() for file in names} != {"new"}:
                        self.assertLess(time.monotonic(), deadline)
                        self.assertIsNone(watcher.poll())
                        time.sleep(0.05)
                finally:
                    watcher.terminate()


class Member(unittest.TestCase):
    """A member of a cohort."""

    def setUp(self):
        self.kustomization = yaml.safe_load((MEMBER / "kustomization.yaml").read_text())
        texts = {name: (MEMBER / name).read_text() for name in self.kustomization["resources"]}
        self.manifests = [(name, manifest) for name, text in texts.items() for manifest in yaml.safe_load_all(text)]
        by_kind = {manifest["kind"]: manifest for _, manifest in self.manifests}
        self.job, self.config = by_kind["Job"]["spec"], by_kind["ConfigMap"]["data"]
        self.pod = self.job["template"]["spec"]
        self.client = self.pod["containers"][0]

    def test_manifests_fit_the_schemas_and_each_other(self):
        for name, manifest in self.manifests:
            with self.subTest(file=name, kind=manifest["kind"]):
                kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
        self.assertEqual(set(self.kustomization["resources"]) | {"kustomization.yaml"}, {file.name for file in MEMBER.glob("*.yaml")})
        containers = self.pod["initContainers"] + self.pod["containers"]
        self.assertEqual({image["name"] for image in self.kustomization["images"]}, {container["image"] for container in containers})
        claims = {manifest["metadata"]["name"] for _, manifest in self.manifests if manifest["kind"] == "PersistentVolumeClaim"}
        self.assertEqual({volume["persistentVolumeClaim"]["claimName"] for volume in self.pod["volumes"] if "persistentVolumeClaim" in volume}, claims)
        volumes = {volume["name"] for volume in self.pod["volumes"]}
        for container in containers:
            self.assertLessEqual({mount["name"] for mount in container["volumeMounts"]}, volumes)
            context = container["securityContext"]
            self.assertTrue(context["readOnlyRootFilesystem"])
            self.assertFalse(context["allowPrivilegeEscalation"])
            self.assertEqual(context["capabilities"]["drop"], ["ALL"])
        keys = {each["valueFrom"]["configMapKeyRef"]["key"] for each in self.client["env"]}
        self.assertLessEqual(keys, self.config.keys())

    def command(self, folder, name):
        """The commands of the pod's containers, with a folder for each of its volumes."""
        own = folder / name
        own.mkdir(exist_ok=True)
        for volume in ("certs", "runs"):
            (own / volume).mkdir(exist_ok=True)
        mounts = {"/secrets": folder / "certs/clients" / name, "/config": folder / "config", "/certs": own / "certs", "/runs": own / "runs"}

        def replaced(word):
            return re.sub(r"(?<![\w.])(/secrets|/config|/certs|/runs)\b", lambda found: str(mounts[found[0]]), word)

        return [[replaced(word) for word in container["command"]] for container in (self.pod["initContainers"][0], self.client)]

    def wait_for(self, is_true):
        deadline = time.monotonic() + 120
        while not is_true():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    @staticmethod
    def committed(member):
        """The step of its newest checkpoint."""
        file = member / "runs/lungs/checkpoints/commits.json"
        return max((each["step"] for each in json.loads(file.read_text())), default=0) if file.exists() else 0

    @staticmethod
    def attendance(file):
        return [each["present"] for each in json.loads(file.read_text())["attendance"]]

    def test_members_train_and_a_lost_pod_is_replaced(self):
        programs = pathlib.Path(os.environ["PROGRAMS"])
        config = yaml.safe_load(self.config["run.yaml"])
        members = config["cohort"]["members"]
        self.assertIn(self.config["member"], members)
        # Instead of the images of the example, and a network that takes hours for them.
        config["data"] = {"format": "synthetic", "shape": [1, 8, 8], "classes": 10, "train": {"size": 300}, "test": {"size": 60}}
        config["model"] = {"name": "mlp"}
        config["train"]["epochs"] = 200
        config["checkpoint"] = {"every_steps": 20}
        config["cohort"]["wait_seconds"] = 1
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "config").mkdir()
            (folder / "config/run.yaml").write_text(yaml.safe_dump(config))
            certs = [programs / "cleave-server", "certs"]
            subprocess.run([*certs, "init", "--folder", folder / "certs"], check=True, stdout=subprocess.DEVNULL)
            for member in members:
                subprocess.run([*certs, "client", member, "--folder", folder / "certs"], check=True, stdout=subprocess.DEVNULL)
            settings = {"listen.port": 0, "tls.enabled": "true", "tls.folder": folder / "certs", "store": folder / "store", "device": "cpu"}
            overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
            with (open(folder / "server.log", "w") as server_log, subprocess.Popen(
                    [programs / "cleave-server", "serve", *overrides], stdout=subprocess.PIPE, stderr=server_log, text=True) as server):  # fmt: skip
                port = server.stdout.readline().strip().rpartition(":")[2]
                environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "SERVER": f"127.0.0.1:{port}"}

                def start(member):
                    certificates, client = self.command(folder, member)
                    subprocess.run(certificates, check=True)
                    return subprocess.Popen(client, env=environment | {"MEMBER": member}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

                pods = {member: start(member) for member in members}
                try:
                    lost, other = members[0], members[1]  # the first one has made the decisions
                    self.wait_for(lambda: self.committed(folder / lost))
                    pods[lost].kill()
                    pods[lost].communicate()
                    cohort = folder / other / "runs/lungs/cohort.json"
                    self.wait_for(lambda: [1, 2] in self.attendance(cohort) and self.committed(folder / other) > self.committed(folder / lost))
                    pods[other].send_signal(signal.SIGSTOP)  # so that the run does not end before
                    pods[lost] = start(lost)
                    self.wait_for(lambda: "joins the cohort" in (folder / "server.log").read_text())
                    pods[other].send_signal(signal.SIGCONT)
                    for member, pod in pods.items():
                        _, log = pod.communicate(timeout=300)
                        self.assertEqual(pod.returncode, 0, f"{member}: {log}")
                finally:
                    for process in (*pods.values(), server):
                        process.send_signal(signal.SIGCONT)
                        process.terminate()
            self.assertEqual(self.attendance(cohort), [[0, 1, 2], [1, 2], [0, 1, 2]])


if __name__ == "__main__":
    unittest.main()
