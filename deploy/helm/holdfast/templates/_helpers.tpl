{{- define "holdfast.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "holdfast.selector" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "holdfast.labels" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- /* What each process of the application has: the image, settings from a file, secrets from variables, and no rights. */ -}}
{{- define "holdfast.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
envFrom:
  - secretRef: {name: {{ .Values.secret }}}
    prefix: HOLDFAST_
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "holdfast.pod" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
automountServiceAccountToken: false
{{- end -}}

{{- define "holdfast.asks" -}}
import urllib.request; urllib.request.urlopen('http://127.0.0.1:6066/health/{{ . }}', timeout=5)
{{- end -}}
