{{/*
The one pod of all roles. Takes root, component, group (of workers, or ""), role (its values), container (command, args,
ports, probes, lifecycle), data (whether it sees the volume) and pod (what only some pods have).
*/}}
{{- define "dask-odm.pod" -}}
{{- $ := .root -}}
metadata:
  labels:
    {{- include "dask-odm.labels" $ | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
    {{- with .group }}
    dask-odm/workers: {{ . }}
    {{- end }}
  annotations:
    checksum/config: {{ include "dask-odm.config" $ | sha256sum }}
    {{- with .role.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "dask-odm.serviceAccount" $ }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .pod }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: {{ int $.Values.runAsUser }}
    runAsGroup: {{ int $.Values.runAsUser }}
    fsGroup: {{ int $.Values.runAsUser }}
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  {{- with $.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  containers:
    - name: {{ .component }}
      image: {{ include "dask-odm.image" $ | quote }}
      imagePullPolicy: {{ $.Values.image.pullPolicy }}
      {{- toYaml .container | nindent 6 }}
      env:
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        {{- if eq .component "train" }}
        - name: JOB_NAME
          valueFrom: {fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/job-name']"}}
        # Workers read what a fit leaves there for them.
        - name: DASK_TEMPORARY_DIRECTORY
          value: {{ $.Values.storage.mountPath }}
        {{- end }}
        {{- if eq .component "worker" }}
        - name: DASK_ODM_WORKER
          value: $(POD_NAME)
        {{- end }}
        - name: DASK_CONFIG
          value: /etc/dask-odm/config
        - name: DASK_SCHEDULER_ADDRESS
          value: {{ include "dask-odm.address" $ }}
        {{- range $name, $value := $.Values.env }}
        - name: {{ $name }}
          value: {{ $value | quote }}
        {{- end }}
      {{- if and .data $.Values.envFrom }}
      envFrom:
        {{- toYaml $.Values.envFrom | nindent 8 }}
      {{- end }}
      resources:
        {{- toYaml .role.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      volumeMounts:
        - name: scratch
          mountPath: /var/lib/dask-odm
        - name: config
          mountPath: /etc/dask-odm/config
          readOnly: true
        {{- if $.Values.tls.enabled }}
        - name: tls
          mountPath: /etc/dask-odm/tls
          readOnly: true
        {{- end }}
        {{- if .data }}
        - name: data
          mountPath: {{ $.Values.storage.mountPath }}
        {{- end }}
  volumes:
    - name: scratch
      emptyDir:
        sizeLimit: {{ .role.temporaryStorage | default "1Gi" }}
    - name: config
      configMap:
        name: {{ include "dask-odm.fullname" $ }}
    {{- if $.Values.tls.enabled }}
    - name: tls
      secret:
        secretName: {{ include "dask-odm.tlsSecret" $ }}
        defaultMode: 0440
    {{- end }}
    {{- if .data }}
    - name: data
      persistentVolumeClaim:
        claimName: {{ include "dask-odm.claim" $ }}
    {{- end }}
  {{- $role := .role }}
  {{- range $name := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" }}
  {{- with index $role $name }}
  {{ $name }}: {{ toJson . }}
  {{- end }}
  {{- end }}
{{- end }}

{{/* Probes of one that answers at /health on the port called http: up to ten minutes to start, then ready or not. */}}
{{- define "dask-odm.probes" -}}
{{- $ask := dict "path" "/health" "port" "http" -}}
startupProbe:
  httpGet: {{ toJson $ask }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 120
readinessProbe:
  httpGet: {{ toJson $ask }}
  periodSeconds: 10
  timeoutSeconds: 15
  failureThreshold: 6
{{- if .enabled }}
livenessProbe:
  httpGet: {{ toJson $ask }}
  periodSeconds: 30
  timeoutSeconds: {{ int .timeoutSeconds }}
  failureThreshold: 6
{{- end }}
{{- end }}
