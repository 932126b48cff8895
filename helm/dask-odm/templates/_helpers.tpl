{{/* The first part of all names, short enough for what is appended. */}}
{{- define "dask-odm.fullname" -}}
{{- $name := .Values.fullnameOverride | default (ternary .Release.Name (printf "%s-dask-odm" .Release.Name) (contains "dask-odm" .Release.Name)) -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* Labels that tell the pods of a release; never changed by an upgrade. */}}
{{- define "dask-odm.selector" -}}
app.kubernetes.io/name: dask-odm
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dask-odm.labels" -}}
{{ include "dask-odm.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "dask-odm.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "dask-odm.address" -}}
{{ ternary "tls" "tcp" .Values.tls.enabled }}://{{ include "dask-odm.fullname" . }}-scheduler.{{ .Release.Namespace }}.svc:8786
{{- end }}

{{- define "dask-odm.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "dask-odm.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end }}

{{- define "dask-odm.claim" -}}
{{- .Values.storage.existingClaim | default (printf "%s-data" (include "dask-odm.fullname" .)) -}}
{{- end }}

{{- define "dask-odm.tlsSecret" -}}
{{- if eq .Values.tls.source "existing" -}}
{{- required "tls.existingSecret names the Secret with ca.crt, tls.crt and tls.key" .Values.tls.existingSecret -}}
{{- else -}}
{{- include "dask-odm.fullname" . }}-tls
{{- end -}}
{{- end }}

{{/* Dask's configuration: what a lost worker must not cost, encryption, then the user's. */}}
{{- define "dask-odm.config" -}}
{{- $nanny := dict "pre-spawn-environ" (dict "MALLOC_TRIM_THRESHOLD_" nil) -}}
{{- $scheduler := dict "allowed-failures" 3 "worker-ttl" "60s" "no-workers-timeout" "300s" -}}
{{- $comm := dict "timeouts" (dict "connect" "60s") -}}
{{- if .Values.tls.enabled -}}
{{- $files := dict "cert" "/etc/dask-odm/tls/tls.crt" "key" "/etc/dask-odm/tls/tls.key" -}}
{{- $tls := dict "ca-file" "/etc/dask-odm/tls/ca.crt" "scheduler" $files "worker" $files "client" $files -}}
{{- $comm = merge $comm (dict "require-encryption" true "tls" $tls) -}}
{{- end -}}
{{- $logging := dict "dask_odm" "info" -}}
{{- $made := dict "distributed" (dict "scheduler" $scheduler "nanny" $nanny "comm" $comm) "logging" $logging -}}
{{- toYaml (mergeOverwrite $made (deepCopy .Values.dask.config)) -}}
{{- end }}
